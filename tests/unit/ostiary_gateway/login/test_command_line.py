"""/auth/cli: the browser carries a code to the loopback, and only the command line that asked can use it."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import Challenge, Redirect
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import (
    Browser,
    Gateway,
    Make,
    Says,
    SaysGroups,
    body,
    events,
    members,
    text_of,
)

VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")


def address(**changes: Any) -> str:
    asked = {"challenge": CHALLENGE, "port": 8000, "state": "s+/=", "client": "ostiary on laptop", **changes}
    return f"/auth/cli?{urlencode({key: value for key, value in asked.items() if value is not None})}"


def callback(answer: LoginAnswer) -> dict[str, str]:
    """What the command line gets; the address must be its own."""
    assert answer.status == 303, answer
    location = answer.header("Location") or ""
    assert location.startswith("http://127.0.0.1:8000/callback?")
    return {key: value for key, (value,) in parse_qs(urlsplit(location).query).items()}


async def exchange(gateway: Gateway, code: str, verifier: str = VERIFIER) -> LoginAnswer:
    return await gateway.post("/auth/cli/token", code=code, verifier=verifier)


async def test_a_command_line_signs_in_through_the_browser(make: Make) -> None:
    """S19, L2, L6: the browser carries a code, and no token."""
    gateway = make(Says(UserInfo("alice")), groups=[SaysGroups(members("developers"))])
    browser = Browser(gateway)
    told = callback(await browser.get(address()))
    assert told["state"] == "s+/="
    answer = await exchange(gateway, told["code"])
    said = body(answer)
    assert (answer.status, said["user"], said["groups"]) == (200, "alice", ["developers"])
    assert set(said) == {
        *("token", "expires_at", "renewal_token", "session", "session_expires_at"),
        *("user", "groups", "sources"),
    }
    found = await gateway.tokens.find(said["token"])
    assert found is not None
    assert found.session.client == "ostiary on laptop from 192.0.2.1"
    assert answer.header("Cache-Control") == "no-store"


async def test_the_browser_is_signed_in_too_and_a_program_without_cookies_can_do_it_as_well(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    browser = Browser(gateway)
    await browser.get(address())
    assert "__Host-ostiary-session" in browser.cookies
    told = callback(await gateway.get(address()))
    assert (await exchange(gateway, told["code"])).status == 200


async def test_after_a_redirect_and_a_group_check_it_ends_at_the_same_command_line(make: Make) -> None:
    """S29, S33."""
    groups = SaysGroups(Redirect("https://g.test/?state=g"), members("developers"))
    gateway = make(Says(Redirect("https://idp.test/?state=i"), UserInfo("alice")), groups=[groups])
    browser = Browser(gateway)
    assert (await browser.get(address())).header("Location") == "https://idp.test/?state=i"
    assert (await browser.get("/auth/provider?state=i")).header("Location") == "https://g.test/?state=g"
    told = callback(await browser.get("/auth/groups/provider?state=g"))
    assert body(await exchange(gateway, told["code"]))["groups"] == ["developers"]


async def test_a_refusal_is_told_also_when_the_form_cannot_be_shown_again(make: Make, clock: FakeClock) -> None:
    """S20."""

    class Full(MemoryTokenStore):
        async def put_record(self, digest: bytes, sealed: bytes, expires_at: datetime) -> bool:
            raise ProviderError("the store is full")

    gateway = make(Says(LoginRefused("no", www_authenticate="Basic")), store=Full(clock=clock))
    assert callback(await Browser(gateway).get(address()))["error"] == "provider-failed"
    assert events(gateway) == [LoginEventKind.OUTAGE, LoginEventKind.REFUSED]


async def test_a_code_is_good_once(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    code = callback(await gateway.get(address()))["code"]
    assert (await exchange(gateway, code)).status == 200
    again = await exchange(gateway, code)
    assert (again.status, body(again)) == (400, {"error": "invalid_grant"})
    assert gateway.events[-1].reason.startswith("invalid sign-in code")


async def test_a_code_is_good_for_a_minute(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(UserInfo("alice")))
    code = callback(await gateway.get(address()))["code"]
    clock.advance(60)
    assert (await exchange(gateway, code)).status == 400
    assert LoginEventKind.ISSUED not in events(gateway)


@pytest.mark.parametrize("verifier", ["w" * 43, "v" * 42, "v" * 44, CHALLENGE, "", "v" * 200, "é" * 43])
async def test_a_code_is_nothing_without_the_secret_behind_its_challenge(make: Make, verifier: str) -> None:
    """L2: and it is used up by the attempt."""
    gateway = make(Says(UserInfo("alice")))
    code = callback(await gateway.get(address()))["code"]
    assert (await exchange(gateway, code, verifier)).status == 400
    assert (await exchange(gateway, code)).status == 400
    assert await gateway.tokens_kept() == 0


async def test_what_is_no_code_gives_nothing(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    for code in ("", "x", "a" * 43):
        assert body(await exchange(gateway, code)) == {"error": "invalid_grant"}
    assert (await gateway.get("/auth/cli/token")).status == 405
    code = callback(await gateway.get(address()))["code"]
    doubled = (("code", code), ("code", code), ("verifier", VERIFIER))
    assert (await gateway.get("/auth/cli/token", method="POST", form=doubled)).status == 400


async def test_who_is_revoked_before_the_code_is_used_gets_no_token(make: Make, clock: FakeClock) -> None:
    """T3."""
    gateway = make(Says(UserInfo("alice")))
    code = callback(await gateway.get(address()))["code"]
    clock.advance(1)
    await gateway.tokens.revoke(RevocationKind.USER, "alice")
    clock.advance(1)
    assert (await exchange(gateway, code)).status == 400


@pytest.mark.parametrize(
    "changes",
    [
        {"challenge": None},
        {"challenge": "short"},
        {"challenge": "+" * 43},
        {"port": None},
        {"port": "80"},
        {"port": "1023"},
        {"port": "65536"},
        {"port": "08000"},
        {"port": "8000 "},
        {"port": "٨٠٠٠"},
        {"port": "-8000"},
        {"port": "8000@evil.test"},
        {"port": "8000/../.."},
        {"state": None},
        {"state": ""},
        {"state": "x" * 129},
        {"state": "a\r\nb"},
        {"state": "é"},
        {"redirect_uri": "https://evil.test"},
        {"host": "evil.test"},
    ],
)
async def test_what_is_not_understood_sends_nobody_anywhere(make: Make, changes: dict[str, Any]) -> None:
    """L3."""
    provider = Says(UserInfo("alice"))
    gateway = make(provider)
    for answer in (await gateway.get(address(**changes)), await Browser(gateway).get(address(**changes))):
        assert answer.status == 400
        assert answer.header("Location") is None
    assert provider.asked == []
    assert (await gateway.get(address() + "&port=9000")).status == 400


async def test_a_refusal_is_told_to_the_command_line(make: Make) -> None:
    """With the cause, as far as the person may know it, and the id by which the operator finds the rest."""
    outage, reported = "the identity provider is unavailable", 'invalid_client ("expired")'
    for error, code, cause in (
        (LoginRefused("no", cause="for the operator"), "login-refused", "no"),
        (ProviderError("down", cause="for the operator"), "provider-failed", outage),
        (ProviderError("down", reported=reported), "provider-failed", f"{outage}: it reported {reported}"),
        (RuntimeError("x"), "provider-failed", outage),
    ):
        gateway = make(Says(error))
        told = callback(await Browser(gateway).get(address()))
        assert told.pop("failure")
        parts = {"error_description": cause, "request_id": "request-1"}
        assert told == {"error": code, **parts, "page": "1", "state": "s+/="}
        gateway = make(Says(Redirect("https://idp.test/"), error))
        browser = Browser(gateway)
        await browser.get(address())
        assert callback(await browser.get("/auth/provider"))["error"] == code
        assert await gateway.tokens_kept() == 0


async def test_the_last_page_of_a_failed_sign_in_says_why(make: Make) -> None:
    gateway = make(Says(LoginRefused("no <b>membership</b>")))
    browser = Browser(gateway)
    told = callback(await browser.get(address()))
    ended = f"/auth/cli/ended?error=login-refused&failure={told['failure']}"
    for _ in range(2):
        page = text_of(await browser.get(ended))
        assert all(text in page for text in ("You are not signed in", "No &lt;b&gt;membership&lt;/b&gt;.", "request-1"))
        assert "refused this user" not in page


async def test_no_link_puts_words_of_others_on_the_last_page(make: Make) -> None:
    browser = Browser(make(Says(LoginRefused("no"))))
    page = text_of(
        await browser.get("/auth/cli/ended?error=x&error_description=call+0800&request_id=call&failure=guessed")
    )
    assert "The sign-in failed." in page
    assert "call" not in page.partition("<main")[2].partition("</main>")[0]


async def test_a_failure_is_told_also_when_the_store_keeps_nothing(make: Make, clock: FakeClock) -> None:
    class Full(MemoryTokenStore):
        async def put_record(self, digest: bytes, sealed: bytes, expires_at: datetime) -> bool:
            raise ProviderError("the store is full")

    told = callback(await Browser(make(Says(LoginRefused("no")), store=Full(clock=clock))).get(address()))
    assert (told["error_description"], told["request_id"], "failure" in told) == ("no", "request-1", False)


async def test_an_unknown_provider_is_told_to_the_command_line(make: Make) -> None:
    told = callback(await Browser(make(Says(UserInfo("alice")))).get(address(provider="nobody")))
    assert (told["error"], told["error_description"]) == ("login-refused", "unknown identity provider")


async def test_with_several_providers_the_person_chooses(make: Make) -> None:
    """S31."""
    gateway = make(Says(UserInfo("alice")), Says(UserInfo("bob")))
    browser = Browser(gateway)
    shown = await browser.get(address())
    assert 'href="/auth/idp2/start"' in text_of(shown)
    assert "ostiary on laptop asks you to sign in" in text_of(shown)
    told = callback(await browser.get("/auth/idp2/start"))
    assert body(await exchange(gateway, told["code"]))["user"] == "idp2:bob"
    # A program names one, or is asked to.
    assert (await gateway.get(address())).status == 400
    assert callback(await gateway.get(address(provider="idp1")))["code"]
    assert (await gateway.get(address(provider="nobody"))).status == 404


async def test_the_provider_sees_none_of_the_parameters(make: Make) -> None:
    """S58: some refuse a visit with any."""
    provider = Says(UserInfo("alice"))
    gateway = make(provider)
    await Browser(gateway).get(address())
    assert (provider.asked[0][1].path, provider.asked[0][1].query) == ("/auth/idp1", ())


async def test_a_program_is_challenged_and_asks_again_with_its_proof(make: Make) -> None:
    gateway = make(Says(Challenge("Negotiate")))
    answer = await gateway.get(address())
    assert (answer.status, answer.header("WWW-Authenticate")) == (401, "Negotiate")


# --- somebody who is signed in already ---


async def test_who_is_signed_in_is_asked_before_a_program_gets_their_rights(make: Make) -> None:
    """L5: a link alone is not enough."""
    gateway = make(Says(UserInfo("alice")))
    browser = Browser(gateway)
    await browser.sign_in()
    page = await browser.get(address())
    assert page.status == 200
    assert all(text in text_of(page) for text in ("alice", "ostiary on laptop", "port 8000"))
    assert "form-action 'self' http://127.0.0.1:8000;" in (page.header("Content-Security-Policy") or "")
    token = await browser.form_token()
    told = callback(await browser.post("/auth/cli", {"form_token": token, "decision": "approve"}))
    assert body(await exchange(gateway, told["code"]))["user"] == "alice"
    again = await browser.post("/auth/cli", {"form_token": token, "decision": "approve"})
    assert again.status == 400, "one word, one code"


async def test_who_says_no_has_the_command_line_told(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    browser = Browser(gateway)
    await browser.sign_in()
    await browser.get(address())
    answer = await browser.post("/auth/cli", {"form_token": await browser.form_token(), "decision": "deny"})
    assert callback(answer) == {"error": "access_denied", "page": "1", "state": "s+/="}
    assert LoginEventKind.REFUSED in events(gateway)


@pytest.mark.parametrize("form_token", ["", "wrong"])
async def test_nobody_else_can_say_yes(make: Make, form_token: str) -> None:
    """L5."""
    gateway = make(Says(UserInfo("alice")))
    browser = Browser(gateway)
    await browser.sign_in()
    await browser.get(address())
    answer = await browser.post("/auth/cli", {"form_token": form_token, "decision": "approve"})
    assert (answer.status, answer.header("Location")) == (403, None)


async def test_an_older_goal_is_not_taken_up_by_another_visit(make: Make) -> None:
    """Who gave up on a command line, and signs in for a look at the page, is sent to the page."""
    gateway = make(Says(Challenge('Basic realm="x"')))
    browser = Browser(gateway)
    await browser.get(address())
    gateway.identity[0].instance.client = UserInfo("alice")  # type: ignore[attr-defined]
    answer = await browser.get("/auth")
    assert answer.header("Location") == "/auth/token"
    assert (await browser.get("/auth/idp1/start")).status == 400, "and what it was for is forgotten"
