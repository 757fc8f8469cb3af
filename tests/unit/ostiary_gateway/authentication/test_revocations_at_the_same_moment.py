"""Revocations that meet a lookup, an expiry or the end of a stream at the same moment."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.authentication.signed_in_users import Store, key, sign_in, stream_of


async def test_a_lookup_that_a_revocation_overtakes_is_made_again(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store
) -> None:
    """Also by one that the store could not write down: what it said before is not believed."""
    issued = await tokens.issue(UserInfo("ann"), provider="staff")
    await authenticator.feed.confirm()
    store.go_on.clear()
    finding = asyncio.create_task(authenticator.find(key(issued)))
    await store.reached.wait()
    authenticator.end_at_once(Revocation(RevocationKind.USER, "somebody else", None, ""))
    store.go_on.set()
    assert await finding is not None
    assert store.lookups == 2


async def test_a_stream_goes_on_in_the_second_its_token_expires(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store, clock: FakeClock
) -> None:
    """It is judged by its session from then on, which the store still knows."""
    stream = stream_of(authenticator, await sign_in(authenticator, tokens))
    clock.advance(minutes=15)
    store.forgetful = True
    await authenticator.feed.confirm()
    assert stream.cuts == 0


async def test_a_token_whose_streams_have_ended_is_not_asked_about_for_their_sake(
    tokens: Tokens, store: Store, clock: FakeClock
) -> None:
    authenticator = TokenAuthenticator(tokens, clock, size_per_user=2_000)
    first = await sign_in(authenticator, tokens)
    authenticator.in_use.remove_stream(first, stream_of(authenticator, first))
    await sign_in(authenticator, tokens)
    assert authenticator.recall(first.digest) is None, "it has made room"
    lookups = store.lookups
    await tokens.revoke(RevocationKind.USER, "ann")
    await authenticator.feed.confirm()
    assert store.lookups == lookups + 1


async def test_a_token_that_was_ended_is_not_asked_about_again(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store
) -> None:
    token = await sign_in(authenticator, tokens)
    stream = stream_of(authenticator, token)
    await tokens.revoke(RevocationKind.USER, "ann")
    await authenticator.feed.confirm()
    lookups = store.lookups
    await tokens.revoke(RevocationKind.USER, "ann")
    await authenticator.feed.confirm()
    assert (stream.cuts, store.lookups) == (1, lookups)


async def test_a_token_with_two_streams_keeps_the_other_when_one_ends(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock
) -> None:
    token = await sign_in(authenticator, tokens)
    first, second = stream_of(authenticator, token), stream_of(authenticator, token)
    authenticator.in_use.remove_stream(token, first)
    clock.advance(hours=24)
    authenticator.tick()
    assert (first.cuts, second.cuts) == (0, 1)


# --- what the feed reports ---


async def test_before_the_first_look_nothing_is_reported(
    authenticator: TokenAuthenticator, store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway that has just started is not yet late."""
    store.down = True
    clock.advance(60)
    with pytest.raises(ProviderError):
        await authenticator.feed.confirm()
    assert authenticator.feed.age == 0
    assert authenticator.feed.report() == ""
    assert caplog.records == []


async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    authenticator: TokenAuthenticator, store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")
    await authenticator.feed.confirm()
    assert authenticator.feed.report() == ""
    clock.advance(7.26)
    for _ in range(3):
        assert authenticator.feed.report() == "not confirmed for 7 s: requests are refused"
    await authenticator.feed.confirm()
    for _ in range(3):
        assert authenticator.feed.report() == ""
    levels = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert levels == [
        (logging.ERROR, "revocations cannot be confirmed: requests are refused with 503"),
        (logging.WARNING, "revocations are confirmed again"),
    ]
    assert (caplog.records[0].__dict__["seconds"], caplog.records[0].__dict__["max_stale"]) == (7.3, 5.0)


async def test_while_everything_is_fresh_the_store_is_not_asked_for_revocations(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store, clock: FakeClock
) -> None:
    issued = [await tokens.issue(UserInfo("ann"), provider="staff") for _ in range(3)]
    await authenticator.feed.confirm()
    before = store.confirmations
    for each in issued:
        assert await authenticator.find(key(each)) is not None
        clock.advance(1)
    assert store.confirmations == before
