"""How long a session lasts about whose user nobody can be asked."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.identity import Identified, RenewalCheck
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import (
    Browser,
    Make,
    Refreshing,
    Revalidating,
    Says,
    body,
    nobody_came_in,
    session_of,
    text_of,
)

VERIFIER = "v" * 43
CHALLENGE = urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("provider", "lasts"),
    [
        (Revalidating(UserInfo("alice")), timedelta(hours=24)),
        (Says(UserInfo("alice")), timedelta(hours=1)),
        (Refreshing(), timedelta(hours=24)),
        (Refreshing(keeps=False), timedelta(hours=1)),
    ],
    ids=["asked", "cannot be asked", "refresh token", "no refresh token"],
)
async def test_a_session_about_which_nobody_can_be_asked_is_shorter(
    make: Make, clock: FakeClock, provider: Any, lasts: timedelta
) -> None:
    gateway = make(provider)
    session = await session_of(gateway, body(await gateway.get()))
    assert session.expires_at - session.created_at == lasts
    browser = Browser(gateway)
    page = text_of(await browser.sign_in())
    assert ("cannot check accounts in between" in page) is (lasts < timedelta(hours=24))
    (session, *_) = await gateway.tokens.store.sessions(username="alice")
    assert session.expires_at - session.created_at == lasts


@pytest.mark.parametrize("check", [RenewalCheck.ACCEPTED, RenewalCheck.SIGN_IN])
async def test_an_operator_who_accepts_it_has_long_sessions(make: Make, check: RenewalCheck) -> None:
    provider = Refreshing(keeps=False)
    provider.renewal_check = check
    gateway = make(provider)
    session = await session_of(gateway, body(await gateway.get()))
    assert session.expires_at - session.created_at == timedelta(hours=24)


@pytest.mark.parametrize("check", [RenewalCheck.ACCEPTED, RenewalCheck.NOBODY])
async def test_nothing_outlasts_the_end_that_the_identity_system_names(
    make: Make, clock: FakeClock, check: RenewalCheck
) -> None:
    """Neither a session, nor what is made of it later on our pages."""
    end = clock.now() + timedelta(minutes=50)

    class Ends(Says):
        renewal_check = check

    provider = Ends(Identified(UserInfo("alice"), session_until=end))
    gateway = make(provider)
    assert (await session_of(gateway, body(await gateway.get()))).expires_at == end
    browser = Browser(gateway)
    await browser.sign_in()
    clock.advance(minutes=40)
    form = {"form_token": await browser.form_token()}
    await browser.post("/auth/token", form)
    await browser.post("/auth/token/narrow", {**form, "scope": "get pods -n shop", "lifetime": "3600"})
    confirmed = await browser.get(f"/auth/cli?challenge={CHALLENGE}&port=5000&state=s&client=kubectl")
    assert confirmed.status == 200
    code = await browser.post("/auth/cli", {**form, "decision": "approve"})
    query = parse_qs(urlsplit(code.header("Location") or "").query)
    await gateway.post("/auth/cli/token", code=query["code"][0], verifier=VERIFIER)
    sessions = await gateway.tokens.store.sessions(username="alice")
    assert [session.expires_at for session in sessions] == [end] * 5
    clock.advance(minutes=10)
    assert await gateway.tokens.store.sessions(username="alice") == []


@pytest.mark.parametrize(
    ("provider", "lasts"),
    [(Says(UserInfo("alice")), timedelta(minutes=10)), (Revalidating(UserInfo("alice")), timedelta(hours=24))],
    ids=["cannot be asked", "asked"],
)
async def test_what_is_made_of_a_session_is_checked_no_later_than_that(
    make: Make, clock: FakeClock, provider: Any, lasts: timedelta
) -> None:
    """Whoever left is out after an hour at most, and not after an hour of the browser and one of a token."""
    gateway = make(provider)
    browser = Browser(gateway)
    await browser.sign_in()
    clock.advance(minutes=50)
    await browser.post("/auth/token", {"form_token": await browser.form_token()})
    (newest, _) = await gateway.tokens.store.sessions(username="alice")
    assert newest.expires_at - clock.now() == lasts


async def test_an_end_in_the_past_begins_nothing(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(Identified(UserInfo("alice"), session_until=clock.now())))
    await nobody_came_in(gateway, await gateway.get())
