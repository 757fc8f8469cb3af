"""How long a session lasts about whose user nobody can be asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ostiary.interfaces.identity import RenewalCheck
from ostiary.model import UserInfo
from ostiary.testing import FakeClock
from tests.unit.gateway.signing_in import Browser, Make, Refreshing, Revalidating, Says, body, session_of, text_of


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
