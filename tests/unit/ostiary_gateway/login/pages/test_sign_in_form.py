"""Signing in with a browser: a form, a choice, or another page; in the end there is a token."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import Challenge, Redirect
from ostiary_gateway.providers.htpasswd import HtpasswdIdentity
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.login.pages.safe_page import assert_is_safe_page
from tests.unit.ostiary_gateway.signing_in import (
    SESSION,
    Browser,
    Gateway,
    Make,
    Says,
    SaysGroups,
    events,
    hidden,
    text_of,
)


async def test_a_person_signs_in_with_a_form_and_ends_on_the_page_with_the_token(make: Make, users: Path) -> None:
    """S16, S18, S21, S25."""
    gateway = make(HtpasswdIdentity(path=users, clock=FakeClock()))
    browser = Browser(gateway)
    form = await browser.get("/auth")
    assert_is_safe_page(form)
    assert form.status == 200
    assert form.header("WWW-Authenticate") is None, "the browser would ask with a window of its own"
    signed = await browser.post("/auth/idp1", {"username": "alice", "password": "pw"})
    assert (signed.status, signed.header("Location")) == (303, "/auth/token")
    home = await browser.follow(signed)
    assert_is_safe_page(home)
    assert "alice" in text_of(home)
    assert "ost_" not in text_of(home)
    shown = await browser.post("/auth/token", {"form_token": hidden(home, "form_token")})
    assert_is_safe_page(shown)
    assert shown.header("Referrer-Policy") == "no-referrer"
    (token,) = re.findall(r"ost_\w{51}", text_of(shown))
    found = await gateway.tokens.find(token)
    assert found is not None
    assert (found.session.user.username, found.session.client) == ("alice", "token page from 192.0.2.1")
    assert events(gateway) == [LoginEventKind.ISSUED, LoginEventKind.ISSUED]


async def test_a_wrong_password_is_told_in_a_plain_sentence(make: Make, users: Path) -> None:
    """S20, L9."""
    gateway = make(HtpasswdIdentity(path=users, clock=FakeClock()))
    browser = Browser(gateway)
    for form in (
        {"username": "alice", "password": "wrong"},
        {"username": "nobody", "password": "pw"},
        {"username": "alice:pw", "password": "pw"},
    ):
        answer = await browser.post("/auth/idp1", form)
        assert_is_safe_page(answer)
        assert (answer.status, (answer.header("WWW-Authenticate") or "")[:6]) in ((401, "Bearer"), (200, ""))
        assert "password" in text_of(answer)
        assert 'role="alert"' in text_of(answer)
        await nobody_came_in_by_cookie(gateway, browser)
    answer = await browser.post("/auth/idp1", {"username": "alice", "password": "wrong"})
    assert "Wrong user name or password." in text_of(answer)
    assert 'value="alice"' in text_of(answer), "nobody has to type it again"
    assert 'wrong"' not in text_of(answer), "the password is not shown again"


async def nobody_came_in_by_cookie(gateway: Gateway, browser: Browser) -> None:
    assert SESSION not in browser.cookies
    assert await gateway.tokens_kept() == 0


async def test_too_many_wrong_passwords_lock_the_form_too(make: Make, users: Path) -> None:
    """L9: whatever case the name is written in."""
    browser = Browser(make(HtpasswdIdentity(path=users, clock=FakeClock())))
    for name in ("alice", "ALICE", "Alice ", "alice", "alicE"):
        await browser.post("/auth/idp1", {"username": name, "password": "wrong"})
    answer = await browser.post("/auth/idp1", {"username": "alice", "password": "pw"})
    assert answer.status == 429
    assert answer.header("Retry-After") is not None
    assert "Too many failed attempts: try again later." in text_of(answer)


async def test_the_form_is_put_to_the_provider_as_basic(make: Make) -> None:
    provider = Says(UserInfo("alice"))
    browser = Browser(make(provider))
    await browser.post("/auth/idp1", {"username": "al", "password": "p:w\u00e9"})
    request = provider.asked[-1][1]
    expected = base64.b64encode("al:p:w\u00e9".encode()).decode()
    assert (request.method, request.form, request.header("authorization")) == ("GET", (), f"Basic {expected}")


async def test_with_several_providers_the_person_chooses_by_link(make: Make) -> None:
    """S31."""
    browser = Browser(make(Says(UserInfo("alice")), Says(Redirect("https://idp.test/"))))
    page = await browser.get("/auth")
    assert_is_safe_page(page)
    assert re.findall(r'href="(/auth/idp\d)"', text_of(page)) == ["/auth/idp1", "/auth/idp2"]
    assert "idp1:alice" in text_of(await browser.sign_in("/auth/idp1"))


async def test_a_form_that_must_go_elsewhere_goes_by_a_page(make: Make) -> None:
    """S33: browsers do not let a form end on another site."""
    gateway = make(Says(UserInfo("alice")), groups=[SaysGroups(Redirect("https://g.test/?a=1&state=x"))])
    answer = await Browser(gateway).post("/auth/idp1", {"username": "alice", "password": "x"})
    assert answer.status == 200
    assert 'content="0; url=https://g.test/?a=1&amp;state=x"' in text_of(answer)


async def test_other_challenges_go_to_the_browser_itself(make: Make) -> None:
    """S41."""
    answer = await Browser(make(Says(Challenge("Negotiate")))).get("/auth")
    assert (answer.status, answer.header("WWW-Authenticate")) == (401, "Negotiate")
    assert_is_safe_page(answer)
