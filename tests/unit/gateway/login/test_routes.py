"""/auth: identity, then groups, then a token; and no token whenever anything on the way is not a clear yes."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostiary.errors import LoginRefused, ProviderError
from ostiary.gateway.audit.sign_ins import LoginEvent, LoginEventKind, log_event
from ostiary.gateway.config.settings import Groups
from ostiary.interfaces.group import Membership
from ostiary.interfaces.identity import Challenge, LoginRequest, Redirect
from ostiary.model import UserInfo
from ostiary.plugins.file.groups import FileGroups
from ostiary.plugins.htpasswd.identity import HtpasswdIdentity
from ostiary.plugins.single_user.identity import SingleUserIdentity
from ostiary.testing import FakeClock
from tests.unit.gateway import acme
from tests.unit.gateway.signing_in import (
    SECRET,
    URL,
    Gateway,
    Make,
    Revalidating,
    Says,
    SaysGroups,
    body,
    cookie_of,
    members,
    nobody_came_in,
)

# --- one request ---


async def test_a_user_gets_a_token_that_attests_user_and_groups(make: Make) -> None:
    """S8, S11, S17, S20, S21, S22, S25, S28."""
    gateway = make(Revalidating(UserInfo("alice", uid="7")), groups=[SaysGroups(members("developers"))])
    answer = await gateway.get()
    told = body(answer)
    assert answer.status == 200
    assert (told["user"], told["groups"]) == ("alice", ["developers"])
    assert told["expires_at"] == "2026-01-01T00:15:00Z"
    assert told["session_expires_at"] == "2026-01-02T00:00:00Z"
    found = await gateway.tokens.find(told["token"])
    assert found is not None
    assert found.session.user == UserInfo("alice", "7", ("developers",))
    assert found.session.id == told["session"]
    assert [event.kind for event in gateway.events] == [LoginEventKind.ISSUED]
    assert gateway.events[0].session == told["session"]


async def test_tokens_are_random_and_short_lived(make: Make, clock: FakeClock) -> None:
    """S8, S24."""
    gateway = make(Says(UserInfo("alice")))
    first, second = body(await gateway.get()), body(await gateway.get())
    assert first["token"] != second["token"]
    clock.advance(minutes=15)
    assert await gateway.tokens_kept() > 0, "nothing was swept yet"
    assert await gateway.tokens.find(first["token"]) is None


async def test_whatever_is_not_a_finished_login_puts_nothing_into_the_store(make: Make) -> None:
    """S21, S23."""
    for said in (Challenge("Basic"), Redirect("https://idp.test/"), LoginRefused("no"), RuntimeError("x"), None):
        gateway = make(Says(said, said), groups=[SaysGroups(members("developers"))])
        for path in ("/auth", "/auth/provider", "/auth/groups/provider"):
            await nobody_came_in(gateway, await gateway.get(path))


async def test_no_answer_with_a_token_is_kept_anywhere(make: Make) -> None:
    answer = await make(Says(UserInfo("alice"))).get()
    assert answer.header("Cache-Control") == "no-store"
    assert answer.header("Referrer-Policy") == "no-referrer"
    assert answer.header("X-Frame-Options") == "DENY"
    assert body(answer)["token"] not in repr(answer)


async def test_the_provider_sees_every_request_and_where_to_return_to(make: Make) -> None:
    """S27, S30."""
    provider = Says(Challenge("Basic"), LoginRefused("no"))
    gateway = make(provider)
    for method in ("GET", "POST", "HEAD", "PUT"):
        await gateway.get("/auth?a=b", method=method, headers=(("x-proof", "1"),))
        await gateway.get("/auth/provider?c=d", method=method)
    assert [(which, request.method) for which, request in provider.asked] == [
        (which, method) for method in ("GET", "POST", "HEAD", "PUT") for which in ("client", "provider")
    ]
    seen = provider.asked[0][1]
    assert (seen.query, seen.headers, seen.remote_address) == ((("a", "b"),), (("x-proof", "1"),), "192.0.2.1")
    assert {request.callback_url for _, request in provider.asked} == {f"{URL}/auth/provider"}


async def test_a_one_request_provider_refuses_every_return(make: Make) -> None:
    """S28."""
    gateway = make(SingleUserIdentity(username="alice"))
    answer = await gateway.get("/auth/provider?code=1")
    assert answer.status == 403
    await nobody_came_in(gateway, answer)


async def test_a_challenge_goes_into_a_401(make: Make) -> None:
    """S38, S41."""
    gateway = make(Says(Challenge('Basic realm="staff"')))
    answer = await gateway.get()
    assert (answer.status, answer.header("WWW-Authenticate")) == (401, 'Basic realm="staff"')
    await nobody_came_in(gateway, answer)


# --- two requests ---


async def test_the_two_request_flow(make: Make) -> None:
    """S10, S20, S29."""
    provider = Says(Redirect("https://idp.test/login?state=abc"), UserInfo("alice"))
    gateway = make(provider)
    away = await gateway.get()
    assert (away.status, away.header("Location")) == (302, "https://idp.test/login?state=abc")
    assert await gateway.tokens_kept() == 0
    back = await gateway.get("/auth/provider?state=abc&code=1", cookie=cookie_of(away))
    assert body(back)["user"] == "alice"
    assert "Max-Age=0" in (back.header("Set-Cookie") or "")


async def test_the_cookie_is_for_this_host_and_out_of_reach_of_scripts(make: Make) -> None:
    away = await make(Says(Redirect("https://idp.test/"))).get()
    cookie = away.header("Set-Cookie") or ""
    assert cookie.startswith("__Host-ostiary-login=")
    assert all(part in cookie for part in ("Path=/", "HttpOnly", "Secure", "SameSite=Lax", "Max-Age=600"))
    plain = await make(Says(Redirect("https://idp.test/")), external_url="http://127.0.0.1:8443").get()
    assert "Secure" not in (plain.header("Set-Cookie") or "")


async def test_a_login_is_finished_by_the_browser_that_began_it(make: Make) -> None:
    """S29."""
    gateway = make(Says(Redirect("https://idp.test/?state=abc"), UserInfo("alice")))
    away = await gateway.get()
    for cookie in ("", "__Host-ostiary-login=guessed", "other=1", 'x="'):
        answer = await gateway.get("/auth/provider?state=abc", cookie=cookie)
        assert answer.status == 403
        await nobody_came_in(gateway, answer)
    assert (await gateway.get("/auth/provider?state=abc", cookie=cookie_of(away))).status == 200


@pytest.mark.parametrize("query", ["", "state=other", "state=abc&state=abc", "state=abc&state=other"])
async def test_nobody_can_finish_a_login_of_his_own_in_another_browser(make: Make, query: str) -> None:
    gateway = make(Says(Redirect("https://idp.test/?state=abc"), UserInfo("mallory")))
    away = await gateway.get()
    answer = await gateway.get(f"/auth/provider?{query}", cookie=cookie_of(away))
    assert answer.status == 403
    await nobody_came_in(gateway, answer)


async def test_a_flow_is_good_for_one_return_and_ten_minutes(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(Redirect("https://idp.test/?state=abc"), UserInfo("alice")))
    away = await gateway.get()
    assert (await gateway.get("/auth/provider?state=abc", cookie=cookie_of(away))).status == 200
    assert (await gateway.get("/auth/provider?state=abc", cookie=cookie_of(away))).status == 403
    away = await gateway.get()
    clock.advance(minutes=10)
    assert (await gateway.get("/auth/provider?state=abc", cookie=cookie_of(away))).status == 403


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


async def test_users_of_different_providers_are_never_the_same(make: Make) -> None:
    """S31."""
    gateway = make(Says(UserInfo("alice")), Says(UserInfo("alice")))
    assert body(await gateway.get("/auth/idp1"))["user"] == "idp1:alice"
    assert body(await gateway.get("/auth/idp2"))["user"] == "idp2:alice"


async def test_each_provider_has_its_own_way_back(make: Make) -> None:
    """S31."""
    one, two = (Says(Redirect(f"https://idp{n}.test/?state=s"), UserInfo("alice")) for n in (1, 2))
    gateway = make(one, two)
    away = await gateway.get("/auth/idp2")
    assert two.asked[0][1].callback_url == f"{URL}/auth/idp2/provider"
    wrong = await gateway.get("/auth/idp1/provider?state=s", cookie=cookie_of(away))
    assert wrong.status == 403
    await nobody_came_in(gateway, wrong)
    away = await gateway.get("/auth/idp2")
    assert body(await gateway.get("/auth/idp2/provider?state=s", cookie=cookie_of(away)))["user"] == "idp2:alice"


async def test_with_one_provider_its_name_may_be_used_or_left_out(make: Make) -> None:
    """S31."""
    gateway = make(Says(UserInfo("alice")))
    assert (await gateway.get("/auth")).status == (await gateway.get("/auth/idp1")).status == 200


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


# --- what is not a yes ---


NOTHING: Any = None
NUMBER: Any = 7
BROKEN: list[Any] = [
    None,
    "alice",
    ("alice", "x"),
    (UserInfo("alice"), Redirect("https://idp.test")),
    {},
    True,
    UserInfo(""),
    UserInfo(NUMBER),
    Redirect(""),
    Redirect(NOTHING),
    Redirect("/relative"),
    Redirect("javascript:alert(1)"),
    Redirect("https://idp.test/\r\nX: y"),
    Challenge(""),
    Challenge("Basic\r\nX: y"),
]


@pytest.mark.parametrize("said", BROKEN, ids=range(len(BROKEN)))
async def test_anything_but_exactly_one_answer_is_the_providers_mistake(make: Make, said: Any) -> None:
    """S26."""
    gateway = make(Says(said))
    answer = await gateway.get()
    assert answer.status == 500
    await nobody_came_in(gateway, answer)
    assert [event.kind for event in gateway.events] == [LoginEventKind.CONTRACT_BROKEN]


@pytest.mark.parametrize("said", [None, Redirect("https://idp.test"), Challenge("Basic"), UserInfo("")])
async def test_a_return_must_give_a_user(make: Make, said: Any) -> None:
    """S26, S27."""
    gateway = make(Says(Redirect("https://idp.test/"), said))
    away = await gateway.get()
    answer = await gateway.get("/auth/provider", cookie=cookie_of(away))
    assert answer.status == 500
    await nobody_came_in(gateway, answer)


@pytest.mark.parametrize(
    ("refusal", "status", "header"),
    [
        (LoginRefused("no such user", cause=SECRET), 403, None),
        (LoginRefused("wrong", cause=SECRET, www_authenticate="Basic x"), 401, ("WWW-Authenticate", "Basic x")),
        (LoginRefused("later", cause=SECRET, retry_after=0.2), 429, ("Retry-After", "1")),
    ],
)
async def test_a_refusal_says_its_summary_and_no_more(
    make: Make, refusal: LoginRefused, status: int, header: tuple[str, str] | None
) -> None:
    """S20."""
    gateway = make(Says(refusal))
    answer = await gateway.get()
    assert answer.status == status
    assert body(answer)["message"] == refusal.summary
    assert body(answer)["kind"] == "Status"
    assert SECRET.encode() not in answer.body
    assert header is None or answer.header(header[0]) == header[1]
    await nobody_came_in(gateway, answer)
    (event,) = gateway.events
    assert event.kind is LoginEventKind.REFUSED
    assert SECRET in event.reason, "the operator learns the cause"


@pytest.mark.parametrize(
    ("error", "status"),
    [(ProviderError("down", cause="x"), 503), (ConnectionError("no route"), 503), (RuntimeError("a bug"), 500)],
)
async def test_an_outage_is_not_a_refusal(make: Make, error: Exception, status: int) -> None:
    """S20: and whoever runs the gateway reads what the provider said, which the person does not."""
    for gateway in (make(Says(error)), make(Says(UserInfo("a")), groups=[SaysGroups(error)])):
        answer = await gateway.get()
        assert answer.status == status
        await nobody_came_in(gateway, answer)
        assert [event.kind for event in gateway.events] == [LoginEventKind.OUTAGE]
        assert str(error).encode() not in answer.body
    reason = gateway.events[0].reason
    assert reason == ("down: x" if isinstance(error, ProviderError) else f"{type(error).__name__}: {error}")


async def test_what_a_provider_could_not_read_is_named(make: Make, tmp_path: Path) -> None:
    class Forgetful(Says):
        async def handle_client(self, request: LoginRequest) -> Any:
            return (tmp_path / "users").read_text()

    gateway = make(Forgetful())
    assert (await gateway.get()).status == 503
    assert gateway.events[0].reason.endswith(f"No such file or directory: '{tmp_path}/users'")


PASSWORD = f"pass'w\u00f6rd &+ {SECRET}"
IN_BASE64 = [base64.b64encode(text.encode()).decode() for text in (PASSWORD, f"ann:{PASSWORD}")]


@pytest.mark.parametrize(
    "text",
    [
        PASSWORD,
        f"the password {PASSWORD!r} is wrong",
        f"cannot ask https://idp.test/?{urlencode({'p': PASSWORD})}",
        f"cannot ask https://idp.test/{quote(PASSWORD)}",
        f"bad answer: {json.dumps(PASSWORD)}",
        *(f"bad header: {encoded}" for encoded in IN_BASE64),
    ],
)
@pytest.mark.parametrize("how", ["basic", "form", "query", "cookie", "header"])
async def test_what_a_person_sent_is_never_repeated_with_an_error(make: Make, text: str, how: str) -> None:
    """S20: a foreign library may say in its error what it was given."""
    parts: dict[str, Any] = {}
    target = "/auth"
    match how:
        case "basic":
            parts["headers"] = (("authorization", f"Basic {IN_BASE64[1]}"),)
        case "form":
            parts |= {"method": "POST", "form": (("username", "ann"), ("password", PASSWORD))}
        case "query":
            target += "?" + urlencode({"code": PASSWORD})
        case "cookie":
            parts["headers"] = (("cookie", f"other=1; sso={PASSWORD}"),)
        case _:
            parts["headers"] = (("x-badge", PASSWORD),)
    gateway = make(Says(RuntimeError(text)))
    await gateway.get(target, **parts)
    (event,) = gateway.events
    assert event.reason.startswith("RuntimeError")
    assert not [secret for secret in (SECRET, *IN_BASE64) if secret in event.reason]


async def test_also_a_short_password_is_not_repeated(make: Make) -> None:
    """S20."""
    gateway = make(Says(RuntimeError("no xyz here")))
    await gateway.get(headers=(("authorization", f"Basic {base64.b64encode(b'ann:xyz').decode()}"),))
    assert gateway.events[0].reason == "RuntimeError, and its text, which repeats what was sent, is left out"


@pytest.mark.parametrize(
    "secret", ["ost_" + "a1B2" * 6, "ghp_" + "a1B2" * 9, "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.x"]
)
async def test_what_looks_like_a_secret_is_not_told_either(make: Make, secret: str) -> None:
    """S20."""
    gateway = make(Says(RuntimeError(f"refused {secret}"), ProviderError("no", cause=f"refused {secret}")))
    await gateway.get()
    await gateway.get("/auth/provider")
    assert [event.reason for event in gateway.events] == ["RuntimeError: refused ***", "no: refused ***"]


async def test_an_error_that_cannot_even_be_printed_is_told_by_its_name(make: Make) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    gateway = make(Says(Odd()))
    assert (await gateway.get()).status == 500
    assert gateway.events[0].reason == "Odd"


async def test_a_provider_that_does_not_answer_is_an_outage(make: Make) -> None:
    class Hangs(Says):
        async def handle_client(self, request: LoginRequest) -> Any:
            await asyncio.Event().wait()

    gateway = make(Hangs(), provider_seconds=0.01)
    answer = await gateway.get()
    assert answer.status == 503
    await nobody_came_in(gateway, answer)


@pytest.mark.parametrize("name", ["system:admin", "system:", "system:serviceaccount:a:b"])
async def test_names_of_the_system_are_refused(make: Make, name: str) -> None:
    gateway = make(Says(UserInfo(name)))
    answer = await gateway.get()
    assert answer.status == 403
    await nobody_came_in(gateway, answer)
    gateway = make(Says(UserInfo(name[1:])), prefix=name[:1])
    await nobody_came_in(gateway, await gateway.get())


@pytest.mark.parametrize("name", ["ann\n", "ann\r\nX-Remote-Group: admins", "a\0b", "\x7f", " ann", "ann ", "a\ud800"])
@pytest.mark.parametrize("where", ["username", "uid", "groups", "extra"])
async def test_a_name_that_no_header_can_carry_is_refused_and_not_found_out_later(
    make: Make, name: str, where: str
) -> None:
    user = UserInfo("ann", extra=(("team", (name,)),)) if where == "extra" else UserInfo("ann")
    if where in ("username", "uid"):
        user = UserInfo(name) if where == "username" else UserInfo("ann", uid=name)
    groups = members(name) if where == "groups" else ()
    gateway = make(Says(user), groups=[SaysGroups(groups)], relevant=frozenset([name]))
    answer = await gateway.get()
    assert (answer.status, "cannot be used here" in body(answer)["message"]) == (403, True)
    reason = gateway.events[-1].reason
    assert reason.isascii()
    assert reason.isprintable()
    assert ascii(name) in reason
    await nobody_came_in(gateway, answer)


async def test_a_group_that_got_such_a_name_ends_the_session_at_renewal(make: Make) -> None:
    groups = SaysGroups(members("dev"))
    gateway = make(Says(UserInfo("ann")), groups=[groups], relevant=frozenset(["dev", "dev "]))
    first = body(await gateway.get())
    groups.of = members("dev ")
    answer = await gateway.post("/auth/renew", renewal_token=first["renewal_token"])
    assert answer.status == 401
    assert "'dev '" in gateway.events[-1].reason


# --- groups ---


async def test_groups_are_asked_right_after_identity_and_about_relevant_ones_only(make: Make) -> None:
    """S11, S32, S34, S35."""
    asked = SaysGroups(members("developers"))
    gateway = make(Says(UserInfo("alice", groups=("claimed",))), groups=[asked])
    assert body(await gateway.get())["groups"] == ["developers"]
    ((user, relevant, request),) = asked.asked
    assert (user.username, relevant) == ("alice", {"developers", "operators"})
    assert request.callback_url == f"{URL}/auth/groups/provider"


async def test_what_is_not_relevant_is_in_no_token(make: Make) -> None:
    """S36."""
    everything = SaysGroups(members("developers", "choir", "system:masters"))
    gateway = make(Says(UserInfo("alice")), groups=[everything], relevant=frozenset({"developers", "system:masters"}))
    assert body(await gateway.get())["groups"] == ["developers"]
    assert everything.asked[0][1] == {"developers"}
    gateway.relevant = frozenset({"developers", "choir"})
    assert body(await gateway.get())["groups"] == ["developers", "choir"]


async def test_where_nothing_is_relevant_nobody_is_asked(make: Make) -> None:
    asked = SaysGroups(members("developers"))
    gateway = make(Says(UserInfo("alice")), groups=[asked], relevant=frozenset())
    assert body(await gateway.get())["groups"] == []
    assert asked.asked == []


async def test_several_group_providers_add_up_and_say_how_they_know(make: Make) -> None:
    one = SaysGroups((Membership("developers", "nested"),))
    two = SaysGroups(members("operators", "developers"))
    told = body(await make(Says(UserInfo("alice")), groups=[one, two]).get())
    assert told["groups"] == ["developers", "operators"]
    assert told["sources"] == {"developers": "g1: nested", "operators": "g2"}


async def test_a_prefix_keeps_the_groups_of_two_directories_apart(make: Make) -> None:
    provider = SaysGroups(members("admins", "corp:admins", ""))
    groups = [Groups("corp", "test", provider, prefix="corp:")]
    gateway = make(Says(UserInfo("alice")), groups=groups, relevant=frozenset({"admins", "corp:admins", "corp:"}))
    assert body(await gateway.get())["groups"] == ["corp:admins"]
    assert provider.asked[0][1] == {"admins"}


async def test_a_group_provider_is_asked_about_the_users_it_is_for(make: Make) -> None:
    only = SaysGroups(members("developers"))
    gateway = make(
        Says(UserInfo("alice")), Says(UserInfo("alice")), groups=[Groups("g", "test", only, identities=("idp2",))]
    )
    assert body(await gateway.get("/auth/idp1"))["groups"] == []
    assert body(await gateway.get("/auth/idp2"))["groups"] == ["developers"]
    assert [user.username for user, _, _ in only.asked] == ["idp2:alice"]


@pytest.mark.parametrize("relevant", [RuntimeError("x"), ProviderError("policy is gone"), None, ["a"], frozenset({1})])
async def test_without_the_relevant_groups_nobody_signs_in(make: Make, relevant: Any) -> None:
    """S37."""
    gateway = make(Says(UserInfo("alice")), groups=[SaysGroups()], relevant=relevant)
    answer = await gateway.get()
    assert answer.status in (500, 503)
    await nobody_came_in(gateway, answer)
    assert len(gateway.events) == 1
    assert gateway.events[0].reason


@pytest.mark.parametrize(
    "said", [None, "developers", ("developers",), UserInfo("a"), Challenge("Basic"), {"developers"}]
)
async def test_a_group_provider_that_breaks_its_contract_closes_the_door(make: Make, said: Any) -> None:
    """S37."""
    gateway = make(Says(UserInfo("alice")), groups=[SaysGroups(members("developers")), SaysGroups(said)])
    answer = await gateway.get()
    assert answer.status == 500
    await nobody_came_in(gateway, answer)


async def test_groups_may_need_a_second_request_too(make: Make) -> None:
    """S32, S33."""
    first = SaysGroups(members("operators"))
    second = SaysGroups(Redirect("https://groups.test/?state=g"), members("developers", "choir"))
    gateway = make(Says(Redirect("https://idp.test/?state=i"), UserInfo("alice")), groups=[first, second])
    away = await gateway.get()
    groups_away = await gateway.get("/auth/provider?state=i", cookie=cookie_of(away))
    assert groups_away.header("Location") == "https://groups.test/?state=g"
    await nobody_came_in(gateway, groups_away)
    back = await gateway.get("/auth/groups/provider?state=g", cookie=cookie_of(groups_away))
    assert body(back)["groups"] == ["operators", "developers"]
    assert len(first.asked) == 1
    again = await gateway.get("/auth/groups/provider?state=g", cookie=cookie_of(groups_away))
    assert again.status == 403


async def test_each_provider_has_its_own_way_back_for_groups(make: Make) -> None:
    """S33."""
    groups = SaysGroups(Redirect("https://groups.test/"), members("developers"))
    gateway = make(Says(UserInfo("alice")), Says(UserInfo("bob")), groups=[groups])
    away = await gateway.get("/auth/idp2")
    assert groups.asked[0][2].callback_url == f"{URL}/auth/idp2/groups/provider"
    assert (await gateway.get("/auth/idp1/groups/provider", cookie=cookie_of(away))).status == 403
    away = await gateway.get("/auth/idp2")
    assert body(await gateway.get("/auth/idp2/groups/provider", cookie=cookie_of(away)))["user"] == "idp2:bob"


async def test_a_way_back_cannot_be_taken_for_the_other(make: Make) -> None:
    """S33."""
    gateway = make(
        Says(Redirect("https://idp.test/"), UserInfo("mallory")), groups=[SaysGroups(Redirect("https://g.test"))]
    )
    away = await gateway.get()
    answer = await gateway.get("/auth/groups/provider", cookie=cookie_of(away))
    assert answer.status == 403
    away = await gateway.get("/auth/provider", cookie=cookie_of(await gateway.get()))
    answer = await gateway.get("/auth/provider", cookie=cookie_of(away))
    assert answer.status == 403
    await nobody_came_in(gateway, answer)


CONTROLS = "".join(map(chr, (*range(0x20), 0x7F)))
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=CONTROLS), min_size=1, max_size=10).filter(
    lambda name: not name.startswith("system:") and name == name.strip(" ")
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(username=NAMES, groups=st.lists(NAMES, unique=True, max_size=4))
async def test_names_come_through_as_they_are(make: Make, username: str, groups: list[str]) -> None:
    """S14."""
    gateway = make(Says(UserInfo(username)), groups=[SaysGroups(members(*groups))], relevant=frozenset(groups))
    told = body(await gateway.get())
    assert (told["user"], told["groups"]) == (username, groups)
    found = await gateway.tokens.find(told["token"])
    assert found is not None
    assert found.session.user == UserInfo(username, groups=tuple(groups))


# --- renewal ---


async def test_a_renewal_asks_about_user_and_groups_again(make: Make, clock: FakeClock) -> None:
    """S36, S64."""
    provider, groups = Revalidating(UserInfo("alice")), SaysGroups(members("developers"))
    gateway = make(provider, groups=[groups], prefix="corp:")
    first = body(await gateway.get())
    clock.advance(minutes=14)
    groups.of = members("operators")
    answer = await gateway.post("/auth/renew", renewal_token=first["renewal_token"])
    told = body(answer)
    assert (answer.status, told["user"], told["groups"]) == (200, "corp:alice", ["operators"])
    assert told["session"] == first["session"]
    assert told["token"] != first["token"]
    assert told["session_expires_at"] == first["session_expires_at"]
    assert provider.asked[-1] == ("revalidate", LoginRequest("", "alice"))
    assert gateway.events[-1].kind is LoginEventKind.RENEWED


async def test_a_user_who_is_gone_loses_the_session(make: Make) -> None:
    """S64."""
    provider = Revalidating(UserInfo("alice"))
    gateway = make(provider)
    first = body(await gateway.get())
    provider.said = LoginRefused("the user is no longer known")
    answer = await gateway.post("/auth/renew", renewal_token=first["renewal_token"])
    assert answer.status == 401
    assert "invalid_token" in (answer.header("WWW-Authenticate") or "")
    assert await gateway.tokens.find(first["token"]) is None


async def test_an_outage_at_renewal_costs_nobody_the_session(make: Make) -> None:
    provider = Revalidating(UserInfo("alice"))
    gateway = make(provider)
    first = body(await gateway.get())
    provider.said = ProviderError("down")
    assert (await gateway.post("/auth/renew", renewal_token=first["renewal_token"])).status == 503
    provider.said = None
    assert (await gateway.post("/auth/renew", renewal_token=first["renewal_token"])).status == 200


async def test_groups_that_need_the_person_end_the_session_at_renewal(make: Make) -> None:
    groups = SaysGroups(members("developers"))
    gateway = make(Says(UserInfo("alice")), groups=[groups])
    first = body(await gateway.get())
    groups.of = Redirect("https://groups.test/")
    assert (await gateway.post("/auth/renew", renewal_token=first["renewal_token"])).status == 401


async def test_providers_see_no_renewal_token(make: Make) -> None:
    groups = SaysGroups(members("developers"))
    gateway = make(Says(UserInfo("alice")), groups=[groups])
    first = body(await gateway.get())
    await gateway.get(
        "/auth/renew",
        method="POST",
        form=(("renewal_token", first["renewal_token"]),),
        headers=(("authorization", f"Bearer {first['token']}"),),
    )
    seen = groups.asked[-1][2]
    assert (seen.form, seen.headers) == ((), ())


@pytest.mark.parametrize("token", ["", "nonsense", "ost_" + "a" * 51])
async def test_what_is_no_renewal_token_renews_nothing(make: Make, token: str) -> None:
    gateway = make(Says(UserInfo("alice")))
    assert (await gateway.post("/auth/renew", renewal_token=token)).status == (401 if token else 400)
    assert (await gateway.get("/auth/renew")).status == 405
    assert (await gateway.get(f"/auth/renew?renewal_token={token}", method="POST")).status == 400


async def test_an_access_token_renews_nothing(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    first = body(await gateway.get())
    assert (await gateway.post("/auth/renew", renewal_token=first["token"])).status == 401


async def test_a_session_of_a_provider_that_is_gone_is_not_renewed(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(UserInfo("alice")))
    first = body(await gateway.get())
    renamed = Gateway([replace(gateway.identity[0], name="other")], clock, store=gateway.store)
    assert (await renamed.post("/auth/renew", renewal_token=first["renewal_token"])).status == 401


# --- logout ---


@pytest.mark.parametrize("which", ["token", "renewal_token"])
async def test_a_logout_ends_the_session(make: Make, which: str) -> None:
    gateway = make(Says(UserInfo("alice")))
    first, other = body(await gateway.get()), body(await gateway.get())
    if which == "token":
        bearer = (("authorization", f"Bearer {first['token']}"),)
        answer = await gateway.get("/auth/logout", method="POST", headers=bearer)
    else:
        answer = await gateway.post("/auth/logout", renewal_token=first["renewal_token"])
    assert answer.status == 204
    assert await gateway.tokens.find(first["token"]) is None
    assert await gateway.tokens.find(other["token"]) is not None
    assert (await gateway.post("/auth/renew", renewal_token=first["renewal_token"])).status == 401
    assert gateway.events[-2].kind is LoginEventKind.ENDED


async def test_a_logout_tells_nobody_which_tokens_there_are(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    assert (await gateway.post("/auth/logout", renewal_token="unknown")).status == 204


async def test_a_logout_without_a_token_is_challenged_for_one(make: Make) -> None:
    """S38, S41."""
    gateway = make(Says(UserInfo("alice")))
    answer = await gateway.post("/auth/logout")
    assert answer.status == 401
    assert (answer.header("WWW-Authenticate") or "").startswith("Bearer ")
    assert (await gateway.get("/auth/logout")).status == 405


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


async def test_many_logins_at_once_do_not_mix(make: Make) -> None:
    class ByHeader(Says):
        async def handle_client(self, request: LoginRequest) -> UserInfo:
            await asyncio.sleep(0)
            return UserInfo(request.header("x-user") or "")

    gateway = make(ByHeader())
    names = [f"user{number}" for number in range(50)]
    answers = await asyncio.gather(*(gateway.get(headers=(("x-user", name),)) for name in names))
    assert [body(answer)["user"] for answer in answers] == names
    assert len({body(answer)["token"] for answer in answers}) == 50


async def test_the_session_says_which_client_it_was(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    await gateway.get(headers=(("user-agent", "kubectl/1.38\x1b[31m" + "x" * 500),))
    (session,) = await gateway.store.sessions()
    assert session.client.startswith("kubectl/1.38[31mxxx")
    assert session.client.endswith(" from 192.0.2.1")
    assert len(session.client) < 200


# --- what is logged ---


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("", "login issued: provider home, user ann, session s1, from 127.0.0.1"),
        ("everywhere", "login issued: provider home, user ann, session s1, from 127.0.0.1: everywhere"),
    ],
)
def test_a_line_of_the_log_ends_where_there_is_no_more_to_tell(
    caplog: pytest.LogCaptureFixture, reason: str, line: str
) -> None:
    with caplog.at_level("INFO", "ostiary.gateway.login"):
        log_event(LoginEvent(LoginEventKind.ISSUED, 200, "home", "ann", "s1", "127.0.0.1", reason))
    assert [record.getMessage() for record in caplog.records] == [line]
