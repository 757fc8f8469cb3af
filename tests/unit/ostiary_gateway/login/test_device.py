"""/auth/device: a machine without a browser, a code that a person reads off it, and somebody who must be asked."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import Redirect
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.login.device import LETTERS, normal_code
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import (
    URL,
    Browser,
    Gateway,
    Make,
    Says,
    SaysGroups,
    body,
    events,
    hidden,
    members,
    text_of,
)


async def begin(gateway: Gateway, client: str = "ostiary on build-7") -> dict[str, Any]:
    answer = await gateway.post("/auth/device", client=client)
    assert answer.status == 200
    return body(answer)


async def poll(gateway: Gateway, device_code: str, clock: FakeClock) -> Any:
    clock.advance(2)
    answer = await gateway.post("/auth/device/token", device_code=device_code)
    told = body(answer)
    assert answer.status == (400 if "error" in told else 200)
    return told.get("error", told)


async def decide(browser: Browser, user_code: str, decision: str = "approve") -> LoginAnswer:
    page = await browser.get(f"/auth/device?code={user_code}")
    assert page.status == 200, text_of(page)
    form = {"form_token": hidden(page, "form_token"), "code": hidden(page, "code"), "decision": decision}
    return await browser.post("/auth/device", form)


async def signed_in(gateway: Gateway) -> Browser:
    browser = Browser(gateway)
    await browser.sign_in()
    return browser


async def test_a_device_is_signed_in_by_a_person_elsewhere(make: Make, clock: FakeClock) -> None:
    """S19, L5."""
    gateway = make(Says(UserInfo("alice")), groups=[SaysGroups(members("developers"))])
    asked = await begin(gateway)
    assert re.fullmatch(rf"[{LETTERS}]{{4}}-[{LETTERS}]{{4}}", asked["user_code"])
    assert asked["verification_uri"] == f"{URL}/auth/device"
    assert asked["verification_uri_complete"] == f"{URL}/auth/device?code={asked['user_code']}"
    assert (asked["interval"], asked["expires_in"]) == (2, 600)
    assert await poll(gateway, asked["device_code"], clock) == "authorization_pending"
    gateway.address = "198.51.100.9"
    done = await decide(await signed_in(gateway), asked["user_code"])
    assert "The device is signed in" in text_of(done)
    told = await poll(gateway, asked["device_code"], clock)
    assert (told["user"], told["groups"]) == ("alice", ["developers"])
    found = await gateway.tokens.find(told["token"])
    assert found is not None
    assert found.session.client == "ostiary on build-7 from 192.0.2.1", "the device, and not who approved it"
    assert await poll(gateway, asked["device_code"], clock) == "expired_token", "once"


async def test_the_person_is_shown_who_asks(make: Make) -> None:
    """L5."""
    gateway = make(Says(UserInfo("alice")))
    asked = await begin(gateway)
    gateway.address = "198.51.100.9"
    page = text_of(await (await signed_in(gateway)).get(f"/auth/device?code={asked['user_code']}"))
    for text in ("ostiary on build-7", "192.0.2.1", "1 January 2026, 00:00 UTC", asked["user_code"], "alice"):
        assert text in page


async def test_a_device_that_is_denied_is_told(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(UserInfo("alice")))
    asked = await begin(gateway)
    assert "Denied" in text_of(await decide(await signed_in(gateway), asked["user_code"], "deny"))
    assert await poll(gateway, asked["device_code"], clock) == "access_denied"
    assert await poll(gateway, asked["device_code"], clock) == "expired_token"
    assert LoginEventKind.REFUSED in events(gateway)


async def test_a_user_code_is_good_for_one_decision(make: Make) -> None:
    """L5."""
    gateway = make(Says(UserInfo("alice")))
    asked = await begin(gateway)
    browser = await signed_in(gateway)
    await decide(browser, asked["user_code"], "deny")
    form = {"form_token": await browser.form_token(), "code": asked["user_code"], "decision": "approve"}
    assert (await browser.post("/auth/device", form)).status == 404
    assert (await browser.get(f"/auth/device?code={asked['user_code']}")).status == 404


async def test_codes_end_after_ten_minutes(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(UserInfo("alice")))
    asked = await begin(gateway)
    browser = await signed_in(gateway)
    clock.advance(minutes=10)
    assert (await browser.get(f"/auth/device?code={asked['user_code']}")).status == 404
    assert await poll(gateway, asked["device_code"], clock) == "expired_token"


async def test_a_device_that_asks_too_often_is_slowed_down(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(UserInfo("alice")))
    asked = await begin(gateway)
    assert await poll(gateway, asked["device_code"], clock) == "authorization_pending"
    at_once = await gateway.post("/auth/device/token", device_code=asked["device_code"])
    assert body(at_once) == {"error": "slow_down"}
    assert await poll(gateway, asked["device_code"], clock) == "authorization_pending"


@pytest.mark.parametrize("code", ["", "x", "a" * 43])
async def test_what_is_no_device_code_gives_nothing(make: Make, code: str, clock: FakeClock) -> None:
    assert await poll(make(Says(UserInfo("alice"))), code, clock) == "expired_token"


async def test_the_user_code_alone_gives_nothing(make: Make, clock: FakeClock) -> None:
    """L5: neither to the device's side, nor to somebody who is not signed in."""
    gateway = make(Says(UserInfo("alice")))
    asked = await begin(gateway)
    assert await poll(gateway, asked["user_code"], clock) == "expired_token"
    stranger = Browser(gateway)
    form = {"form_token": "", "code": asked["user_code"], "decision": "approve"}
    assert (await stranger.post("/auth/device", form)).status == 401
    assert await poll(gateway, asked["device_code"], clock) == "authorization_pending"


async def test_user_codes_cannot_be_guessed_at_leisure(make: Make, clock: FakeClock) -> None:
    """L5."""
    gateway = make(Says(UserInfo("alice")))
    browser = await signed_in(gateway)
    tries = [
        (await browser.get(f"/auth/device?code=BCDF-GH{first}{second}")).status for first in "BCD" for second in "BCDF"
    ]
    assert tries == [404] * 10 + [429] * 2
    gateway.address = "203.0.113.5"
    assert (await browser.get("/auth/device?code=BCDF-GHJK")).status == 429, "the same user from elsewhere"
    clock.advance(60)
    assert (await browser.get("/auth/device?code=BCDF-GHJK")).status == 404


async def test_who_is_not_signed_in_signs_in_first_and_comes_back_to_the_code(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(Redirect("https://idp.test/?state=s"), UserInfo("alice")))
    asked = await begin(gateway)
    browser = Browser(gateway)
    assert (await browser.get("/auth/device")).status == 200
    away = await browser.get(f"/auth/device?code={asked['user_code'].lower()}")
    assert away.header("Location") == "https://idp.test/?state=s"
    back = await browser.get("/auth/provider?state=s")
    assert back.header("Location") == f"/auth/device?code={asked['user_code'].replace('-', '')}"
    assert asked["user_code"] in text_of(await browser.follow(back))
    assert "eight letters" in text_of(await Browser(gateway).get("/auth/device?code=nonsense"))


async def test_an_approval_needs_a_form_of_this_session(make: Make, clock: FakeClock) -> None:
    """L5."""
    gateway = make(Says(UserInfo("alice")))
    asked = await begin(gateway)
    browser = await signed_in(gateway)
    other = await signed_in(gateway)
    form = {"code": asked["user_code"], "decision": "approve"}
    ours = (("origin", URL),)
    for token, headers in (
        ("", ours),
        (await other.form_token(), ours),
        (await browser.form_token(), (("origin", "https://evil.test"),)),
        (await browser.form_token(), (("origin", "null"),)),
        (await browser.form_token(), ()),
        (await browser.form_token(), (*ours, ("sec-fetch-site", "cross-site"))),
        (await browser.form_token(), (*ours, ("sec-fetch-site", "same-site"))),
        (await browser.form_token(), (*ours, ("sec-fetch-mode", "cors"))),
    ):
        answer = await browser.post("/auth/device", {**form, "form_token": token}, headers=headers)
        assert answer.status == 403
    assert await poll(gateway, asked["device_code"], clock) == "authorization_pending"
    undecided = await browser.post("/auth/device", {**form, "form_token": await browser.form_token(), "decision": "x"})
    assert undecided.status == 400


async def test_who_is_revoked_after_approving_gives_the_device_nothing(make: Make, clock: FakeClock) -> None:
    """T3."""
    gateway = make(Says(UserInfo("alice")))
    asked = await begin(gateway)
    await decide(await signed_in(gateway), asked["user_code"])
    clock.advance(1)
    await gateway.tokens.revoke(RevocationKind.USER, "alice")
    assert await poll(gateway, asked["device_code"], clock) == "access_denied"


async def test_what_a_device_calls_itself_is_short_and_harmless(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    asked = await begin(gateway, "<script>alert(1)</script>\x1b[31m" + "x" * 500)
    page = text_of(await (await signed_in(gateway)).get(f"/auth/device?code={asked['user_code']}"))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[31m" in page
    assert "x" * 130 not in page
    assert (await gateway.get("/auth/device/token")).status == 405


def test_a_code_is_read_as_people_type_it(subtests: pytest.Subtests) -> None:
    cases = [
        ("bcdf-ghjk", "BCDFGHJK"),
        (" BCDF GHJK ", "BCDFGHJK"),
        ("BCDF\u2011GHJK", "BCDFGHJK"),
        ("BCDFGHJ", ""),
        ("BCDFGHJKL", ""),
        ("ABCDFGHJ", ""),
        ("", ""),
        ("1BCDFGHJ", ""),
    ]
    for typed, code in cases:
        with subtests.test(typed=typed, code=code):
            assert normal_code(typed) == code
