"""What becomes of sessions at renewal: who is asked, with what, and how long one lasts that nobody vouches for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.config.provider import Groups
from ostiary_gateway.interfaces.identity import Identified
from ostiary_gateway.sessions import unseal_kept
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import (
    REFRESH,
    Browser,
    Gateway,
    Make,
    Refreshing,
    Says,
    body,
    hidden,
    make,
    session_of,
)

__all__ = ["make"]


async def renew(gateway: Gateway, token: str) -> Any:
    return await gateway.post("/auth/renew", renewal_token=token)


def with_groups(make: Make, provider: Refreshing) -> Gateway:
    return make(provider, groups=[Groups("teams", "claims", provider, own=True)])


async def test_what_the_provider_keeps_is_given_to_it_at_each_renewal_the_newest_one(make: Make) -> None:
    provider = Refreshing("developers", "operators")
    gateway = with_groups(make, provider)
    told = body(await gateway.get())
    assert told["groups"] == ["developers", "operators"]
    provider.user = UserInfo("alice", groups=("operators", "nobody asked"))
    told = body(await renew(gateway, told["renewal_token"]))
    assert told["groups"] == ["operators"], "a group that was taken away is gone with the next token"
    body(await renew(gateway, told["renewal_token"]))
    assert provider.used == [REFRESH, "refresh-canary-2"]


async def test_a_disabled_account_is_out_at_the_next_renewal(make: Make) -> None:
    provider = Refreshing()
    gateway = make(provider)
    told = body(await gateway.get())
    provider.error = LoginRefused("no such account")
    assert (await renew(gateway, told["renewal_token"])).status == 401
    assert await gateway.tokens.find(told["token"]) is None


async def test_after_an_outage_the_session_can_still_be_renewed(make: Make) -> None:
    provider = Refreshing()
    gateway = make(provider)
    told = body(await gateway.get())
    provider.error = ProviderError("down")
    assert (await renew(gateway, told["renewal_token"])).status == 503
    provider.error = None
    assert (await renew(gateway, told["renewal_token"])).status == 200
    assert provider.used == [REFRESH, REFRESH]


async def test_what_is_kept_lies_in_the_store_sealed_with_the_clients_secret(make: Make) -> None:
    gateway = make(Refreshing())
    told = body(await gateway.get())
    session = await session_of(gateway, told)
    assert "canary" not in session.sealed + repr(session)
    assert unseal_kept(session, told["token"]) is None
    kept = unseal_kept(session, told["renewal_token"])
    assert kept is not None
    assert kept.reveal() == REFRESH


async def test_a_session_whose_seal_was_broken_is_not_renewed(make: Make) -> None:
    gateway = make(Refreshing())
    told = body(await gateway.get())
    session = await session_of(gateway, told)
    await gateway.tokens.keep(session, "another secret", Secret("x"), expires_at=session.expires_at)
    assert (await renew(gateway, told["renewal_token"])).status == 401


async def test_two_workers_do_not_use_one_refresh_token_at_once(make: Make) -> None:
    """The identity system would take the second use for theft, and end the session."""
    provider = Refreshing()
    gateway = make(provider)
    other = Gateway(gateway.identity, gateway.clock, store=gateway.store)
    told = body(await gateway.get())
    second: list[int] = []

    async def meanwhile(user: UserInfo, kept: Secret) -> Identified:
        second.append((await renew(other, told["renewal_token"])).status)
        return Identified(provider.user, Secret("refresh-canary-2"))

    provider.ask_again = meanwhile  # type: ignore[method-assign]
    assert (await renew(gateway, told["renewal_token"])).status == 200
    assert second == [409]
    assert await gateway.tokens.find(told["token"]) is not None


async def test_a_command_line_gets_what_the_browser_kept_and_the_browsers_session_ends_sooner(
    make: Make, clock: FakeClock
) -> None:
    provider = Refreshing()
    gateway = make(provider)
    browser = Browser(gateway)
    await browser.sign_in()
    clock.advance(minutes=30)
    device = body(await gateway.post("/auth/device"))
    page = await browser.get(f"/auth/device?code={device['user_code']}")
    approval = {"form_token": hidden(page, "form_token"), "code": device["user_code"], "decision": "approve"}
    assert (await browser.post("/auth/device", approval)).status == 200
    assert provider.used == [REFRESH]
    told = body(await gateway.post("/auth/device/token", device_code=device["device_code"]))
    machine = await session_of(gateway, told)
    assert machine.expires_at - machine.created_at == timedelta(hours=24)
    assert (await renew(gateway, told["renewal_token"])).status == 200
    assert provider.used == [REFRESH, "refresh-canary-2"]
    (browsers,) = [one for one in await gateway.tokens.store.sessions(username="alice") if one.id != machine.id]
    assert (browsers.sealed, browsers.expires_at - browsers.created_at) == ("", timedelta(hours=1))


@pytest.mark.parametrize(("too_early", "asked"), [(timedelta(0), [REFRESH]), (timedelta(microseconds=1), [])])
async def test_the_provider_is_asked_again_once_a_token_of_the_sign_in_would_have_ended(
    make: Make, clock: FakeClock, too_early: timedelta, asked: list[str]
) -> None:
    provider = Refreshing()
    gateway = make(provider)
    browser = Browser(gateway)
    await browser.sign_in()
    (session,) = await gateway.tokens.store.sessions(username="alice")
    minute = timedelta(minutes=1)
    clock.advance((gateway.tokens.lifetime - minute).total_seconds())
    device = body(await gateway.post("/auth/device"))
    page = await browser.get(f"/auth/device?code={device['user_code']}")
    approval = {"form_token": hidden(page, "form_token"), "code": device["user_code"], "decision": "approve"}
    clock.advance((minute - too_early).total_seconds())
    assert clock.now() == session.created_at + gateway.tokens.lifetime - too_early
    assert (await browser.post("/auth/device", approval)).status == 200
    assert provider.used == asked


async def test_a_provider_that_keeps_what_it_cannot_ask_with_breaks_its_contract(make: Make) -> None:
    gateway = make(Says(Identified(UserInfo("alice"), Secret("x"))))
    assert (await gateway.get()).status == 500
    assert await gateway.tokens_kept() == 0
