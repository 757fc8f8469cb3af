"""/auth: identity, then groups, then a token; and no token whenever anything on the way is not a clear yes."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.config.provider import Groups
from ostiary_gateway.interfaces.identity import SignIn
from ostiary_gateway.providers.file import FileGroups
from ostiary_gateway.providers.htpasswd import HtpasswdIdentity
from tests.unit.ostiary_gateway import acme
from tests.unit.ostiary_gateway.signing_in import (
    URL,
    Make,
    Says,
    body,
    cookie_of,
    nobody_came_in,
)


async def test_no_answer_with_a_token_is_kept_anywhere(make: Make) -> None:
    answer = await make(Says(UserInfo("alice"))).get()
    assert answer.header("Cache-Control") == "no-store"
    assert answer.header("Referrer-Policy") == "no-referrer"
    assert answer.header("X-Frame-Options") == "DENY"
    assert body(answer)["token"] not in repr(answer)


# --- several providers ---


async def test_with_several_providers_auth_offers_a_choice(make: Make) -> None:
    """S31."""
    gateway = make(Says(UserInfo("alice")), Says(UserInfo("alice")))
    answer = await gateway.get()
    assert answer.status == 300
    assert body(answer) == {
        "choices": [{"name": "idp1", "url": f"{URL}/auth/idp1"}, {"name": "idp2", "url": f"{URL}/auth/idp2"}]
    }
    assert await gateway.tokens_kept() == 0


@pytest.mark.parametrize(
    "path",
    ["/auth/nobody", "/auth/", "/auth/idp1/", "/authx", "/auth/idp1/x", "/", "", "/auth/groups", "/auth/provider"],
)
async def test_other_paths_lead_nowhere(make: Make, path: str) -> None:
    gateway = make(Says(UserInfo("alice")), Says(UserInfo("bob")))
    answer = await gateway.get(path)
    assert answer.status == 404
    await nobody_came_in(gateway, answer)


async def test_a_form_of_another_site_is_refused(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    for origin in ("https://evil.test", "null", f"{URL}.evil.test", "http://gw.example.com"):
        answer = await gateway.get(method="POST", headers=(("origin", origin),))
        assert answer.status == 403
        await nobody_came_in(gateway, answer)
    assert (await gateway.get(method="POST", headers=(("origin", URL),))).status == 200


# --- with providers that are shipped, and with somebody else's ---


async def test_a_password_and_a_group_file(make: Make, tmp_path: Path) -> None:
    """S5, S11."""
    import bcrypt

    (tmp_path / "users").write_text("alice:" + bcrypt.hashpw(b"pw", bcrypt.gensalt(4)).decode())
    (tmp_path / "groups.yaml").write_text("developers: [alice]\nchoir: [alice]\n")
    gateway = make(HtpasswdIdentity(path=tmp_path / "users"), groups=[FileGroups(path=tmp_path / "groups.yaml")])
    first = await gateway.get()
    assert (first.status, (first.header("WWW-Authenticate") or "")[:5]) == (401, "Basic")
    told = body(await gateway.get(headers=(("authorization", "Basic YWxpY2U6cHc="),)))
    assert (told["user"], told["groups"], told["sources"]) == (
        "alice",
        ["developers"],
        {"developers": "g1: file groups.yaml"},
    )
    (tmp_path / "users").write_text("")
    assert (await gateway.post("/auth/renew", renewal_token=told["renewal_token"])).status == 401


async def test_one_object_of_somebody_else_is_both_and_keeps_its_own_storage(make: Make, tmp_path: Path) -> None:
    """S1, S6, S7."""
    acme.write_database(tmp_path / "acme.db", ("b-1", "alice", "developers"), ("b-2", "bob", "choir"))
    provider = acme.Acme(path=tmp_path / "acme.db")
    # As its own group provider it sees usernames as it gave them, without the prefix.
    groups = [Groups("teams", "acme", provider, identities=("idp1",), own=True)]
    gateway = make(provider, groups=groups, prefix="acme:")
    told = body(await gateway.get(headers=(("x-badge", "b-1"),)))
    assert (told["user"], told["groups"]) == ("acme:alice", ["developers"])
    assert (await gateway.get(headers=(("x-badge", "b-9"),))).status == 403
    away = await gateway.get()
    assert urlsplit(away.header("Location") or "").hostname == "login.acme.test"
    back = await gateway.get("/auth/provider?state=s1&badge=b-2", cookie=cookie_of(away))
    assert body(back)["user"] == "acme:bob"


async def test_programs_get_what_they_always_got(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    answer = await gateway.get(headers=(("accept", "*/*"),))
    assert (answer.status, body(answer)["user"]) == (200, "alice")
    for path in ("/auth/token", "/auth/sessions", "/auth/device", "/auth/admin"):
        assert (await gateway.get(path)).status == 406


async def test_methods_tell_a_program_what_to_offer(make: Make) -> None:
    password, ambient = Says(), Says()
    password.sign_in, ambient.sign_in = SignIn.PASSWORD, SignIn.AMBIENT  # type: ignore[attr-defined]
    told = body(await make(Says(), password, ambient).get("/auth/methods"))
    kinds = [("idp1", "redirect"), ("idp2", "password"), ("idp3", "ambient")]
    assert told == {"providers": [{"name": name, "kind": kind} for name, kind in kinds], "gateway": URL}
