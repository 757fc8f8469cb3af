"""The page of API tokens: one's own, shown once, and only to whom the policy lets have them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.config.accounts import ApiTokenSettings
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.login.admin.test_area import Policy
from tests.unit.ostiary_gateway.login.pages.safe_page import assert_is_safe_page
from tests.unit.ostiary_gateway.signing_in import Browser, Gateway, Make, Revalidating, events, hidden, text_of

OWN = [("alice", verb, "apitokens") for verb in ("create", "list", "delete")]
ON = ApiTokenSettings(enabled=True)


def gateway_for(
    make: Make, clock: FakeClock, *allowed: tuple[str, str, str], settings: ApiTokenSettings = ON
) -> Gateway:
    authorizer = Authorizer([Link("cluster", Policy(*allowed))], clock=clock)
    return make(Revalidating(UserInfo("alice")), authorizer=authorizer, api_tokens=settings)


@pytest.fixture
async def browser(make: Make, clock: FakeClock) -> Browser:
    browser = Browser(gateway_for(make, clock, *OWN))
    await browser.sign_in()
    return browser


async def create(browser: Browser, **fields: str) -> LoginAnswer:
    form = {"form_token": await browser.form_token(), "name": "backup", "days": "30", **fields}
    return await browser.post("/auth/tokens", {name: value for name, value in form.items() if value})


async def kept(browser: Browser) -> list[Session]:
    sessions = await browser.gateway.tokens.store.sessions(username="alice")
    return [session for session in sessions if session.name]


@pytest.mark.parametrize(
    ("lifetime", "longest", "days"),
    [
        (timedelta(days=30), timedelta(days=90), "30"),
        (timedelta(days=90), timedelta(days=90), "90"),
        (timedelta(hours=36), timedelta(days=90), "1"),
        (timedelta(hours=1), timedelta(days=90), "1"),
    ],
)
async def test_the_usual_lifetime_is_proposed_in_whole_days(
    make: Make, clock: FakeClock, lifetime: timedelta, longest: timedelta, days: str
) -> None:
    settings = ApiTokenSettings(enabled=True, lifetime=lifetime, longest_lifetime=longest)
    browser = Browser(gateway_for(make, clock, *OWN, settings=settings))
    await browser.sign_in()
    assert re.findall(r'name="days" value="(\d+)"', text_of(await browser.get("/auth/tokens"))) == [days]


async def test_a_token_is_made_shown_once_listed_and_revoked(browser: Browser) -> None:
    assert 'href="/auth/tokens"' in text_of(await browser.get("/auth/token"))
    empty = await browser.get("/auth/tokens")
    assert_is_safe_page(empty)
    assert "You have no API tokens." in text_of(empty)
    made = await create(browser, scope="get,list pods -n shop")
    assert_is_safe_page(made)
    assert made.header("Referrer-Policy") == "no-referrer"
    (token,) = re.findall(r"osp_[0-9A-Za-z]{43}[0-9a-f]{8}", text_of(made))
    assert await browser.gateway.tokens.find(token) is not None
    assert events(browser.gateway)[-1] is LoginEventKind.ISSUED
    listed = await browser.get("/auth/tokens")
    assert_is_safe_page(listed)
    assert token not in text_of(listed)
    assert "backup" in text_of(listed)
    assert "get,list pods -n shop" in text_of(listed)
    (session,) = await kept(browser)
    form = {"form_token": hidden(listed, "form_token"), "session": session.id}
    assert (await browser.post("/auth/tokens", form)).status == 303
    assert await browser.gateway.tokens.find(token) is None
    # Sent twice, it does no harm.
    assert (await browser.post("/auth/tokens", form)).status == 303


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": ""}, "The name of an API token"),
        ({"days": "0"}, "a number of days"),
        ({"days": "-1"}, "a number of days"),
        ({"days": "1e3"}, "a number of days"),
        ({"days": "٣"}, "a number of days"),
        ({"days": "91"}, "2160h at most"),
        ({"scope": "<b>everything"}, "Invalid scope"),
    ],
    ids=range(7),
)
async def test_a_mistake_is_told_on_the_form_and_what_was_typed_stays(
    browser: Browser, fields: dict[str, str], problem: str
) -> None:
    answer = await create(browser, **fields)
    assert answer.status == 400
    assert_is_safe_page(answer)
    assert problem in text_of(answer)
    assert "<b>" not in text_of(answer).replace("<b>backup", "")
    assert await kept(browser) == []


async def test_a_name_that_looks_like_html_is_a_name(browser: Browser) -> None:
    assert_is_safe_page(await create(browser, name="<img src=x>"))
    page = await browser.get("/auth/tokens")
    assert_is_safe_page(page)
    assert "&lt;img src=x&gt;" in text_of(page)


async def test_the_same_name_twice_is_told(browser: Browser) -> None:
    await create(browser)
    assert "already" in text_of(await create(browser))
    assert len(await kept(browser)) == 1


async def test_a_form_of_another_session_makes_nothing(browser: Browser) -> None:
    answer = await browser.post("/auth/tokens", {"form_token": "another", "name": "backup", "days": "1"})
    assert answer.status == 403
    assert await kept(browser) == []


async def test_nobody_ends_the_token_of_another_person(browser: Browser) -> None:
    tokens = browser.gateway.tokens
    bob = await tokens.issue_token(UserInfo("bob"), provider="idp1", name="his", lifetime=timedelta(days=1))
    form = {"form_token": await browser.form_token(), "session": bob.session.id}
    assert (await browser.post("/auth/tokens", form)).status == 303
    assert await tokens.find(bob.token.reveal()) is not None


async def test_without_permission_there_is_no_page_and_no_link(make: Make, clock: FakeClock) -> None:
    browser = Browser(gateway_for(make, clock))
    assert 'href="/auth/tokens"' not in text_of(await browser.sign_in())
    assert (await browser.get("/auth/tokens")).status == 403
    assert (await create(browser)).status == 403
    assert await kept(browser) == []


async def test_switched_off_there_is_no_page(make: Make, clock: FakeClock) -> None:
    browser = Browser(gateway_for(make, clock, *OWN, settings=ApiTokenSettings()))
    assert 'href="/auth/tokens"' not in text_of(await browser.sign_in())
    assert (await browser.get("/auth/tokens")).status == 404


async def test_an_owner_who_is_nobody_any_more_makes_none(clock: FakeClock, browser: Browser) -> None:
    form_token = await browser.form_token()
    clock.advance(16 * 60)
    provider: Any = browser.gateway.identity[0].instance
    provider.said = LoginRefused("unknown user")
    answer = await browser.post("/auth/tokens", {"form_token": form_token, "name": "backup", "days": "1"})
    assert answer.status in (401, 403)
    assert await kept(browser) == []
