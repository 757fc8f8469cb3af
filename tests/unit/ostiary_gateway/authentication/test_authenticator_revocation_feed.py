"""A worker knows which revocation it applied last, and does not go on for long without knowing the latest one."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.interfaces.token_store import Revocation, RevocationBatch, RevocationKind
from ostiary_gateway.sessions import Issued, Tokens, digest, origins_of
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.bounded import bytes_of_owner
from tests.support.http1 import turn

ANN = UserInfo("ann", groups=("dev",))
(SIGN_IN,) = origins_of("staff", session_id="sid-1", subject="")


class Store(MemoryTokenStore):
    """Can be made to fail, and to wake nobody."""

    failing = False
    silent = False
    waited = 0.0

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        if self.failing:
            raise ProviderError("the token store cannot be used", code="token-store-unavailable")
        return await super().revocations_after(sequence)

    async def wait_for_revocations(self, after: int, seconds: float) -> None:
        self.waited = seconds
        if self.silent:
            # As long as nobody wakes us up: all notifications are lost.
            await asyncio.sleep(0)
            return
        await super().wait_for_revocations(after, seconds)


class Stream:
    ended = False

    def cut(self) -> None:
        self.ended = True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return Store(clock=clock)


@pytest.fixture
def tokens(store: Store, clock: FakeClock) -> Tokens:
    return Tokens(store, clock=clock)


@pytest.fixture
def authenticator(tokens: Tokens, clock: FakeClock) -> TokenAuthenticator:
    authenticator = TokenAuthenticator(tokens, clock, max_stale=5.0)
    tokens.on_unsaved = authenticator.end_at_once
    return authenticator


def key(issued: Issued) -> bytes:
    return digest(issued.token.reveal())


async def test_a_worker_that_cannot_confirm_the_latest_revocation_lets_nobody_in(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    issued = await tokens.issue(ANN, provider="staff")
    assert await authenticator.find(key(issued)) is not None
    store.failing = True
    clock.advance(4.9)
    assert authenticator.recall(key(issued)) is not None
    assert authenticator.feed.report() == ""
    clock.advance(0.1)
    assert authenticator.recall(key(issued)) is None
    with pytest.raises(ProviderError):
        await authenticator.find(key(issued))
    assert authenticator.feed.report() == "not confirmed for 5 s: requests are refused"
    authenticator.feed.report()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        "revocations cannot be confirmed: requests are refused with 503"
    ]
    store.failing = False
    assert await authenticator.find(key(issued)) is not None
    assert authenticator.recall(key(issued)) is not None
    assert authenticator.feed.report() == ""


async def test_when_all_notifications_are_lost_the_next_look_finds_what_is_new(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store
) -> None:
    store.silent = True
    issued = await tokens.issue(ANN, provider="staff")
    live, stream = await authenticator.find(key(issued)), Stream()
    assert live is not None
    authenticator.in_use.add_stream(live, stream)
    following = asyncio.ensure_future(authenticator.follow_revocations())
    await tokens.revoke(RevocationKind.USER, "ann")
    async with asyncio.timeout(30):
        while not stream.ended:
            await asyncio.sleep(0)
    assert authenticator.feed.applied == await tokens.sequence()
    following.cancel()


@pytest.mark.parametrize(("max_stale", "pause"), [(5.0, 1.0), (60.0, 1.0), (1.0, 0.25)])
async def test_the_store_is_looked_at_well_within_the_time_but_not_all_the_time(
    tokens: Tokens, store: Store, clock: FakeClock, max_stale: float, pause: float
) -> None:
    authenticator = TokenAuthenticator(tokens, clock, max_stale=max_stale)
    following = asyncio.ensure_future(authenticator.follow_revocations())
    while not store.waited:
        await asyncio.sleep(0)
    assert store.waited == pause
    following.cancel()


async def test_what_was_applied_only_in_part_is_applied_again(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [await tokens.issue(UserInfo(name), provider="staff") for name in ("ann", "bob")]
    lives = [await authenticator.find(key(issued)) for issued in (first, second)]
    for username in ("ann", "bob"):
        await tokens.revoke(RevocationKind.USER, username)
    before = authenticator.feed.applied
    applied = 0

    async def fail_at_second(token_digest: bytes) -> None:
        nonlocal applied
        applied += 1
        if applied == 2:
            raise ProviderError("the token store cannot be used")

    with monkeypatch.context() as patch:
        patch.setattr(tokens, "lookup", fail_at_second)
        with pytest.raises(ProviderError):
            await authenticator.feed.confirm()
    assert authenticator.feed.applied == before
    await authenticator.feed.confirm()
    assert authenticator.feed.applied == await tokens.sequence()
    assert all(live is not None and authenticator.recall(live.digest) is None for live in lives)


async def test_a_token_that_expired_in_memory_is_not_good_again_when_the_clock_is_set_back(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock
) -> None:
    issued = await tokens.issue(ANN, provider="staff")
    assert await authenticator.find(key(issued)) is not None
    clock.advance(minutes=15)
    assert authenticator.recall(key(issued)) is None
    assert await authenticator.find(key(issued)) is None
    clock.set_back(hours=1)
    assert authenticator.recall(key(issued)) is None
    assert await authenticator.find(key(issued)) is None


async def test_what_is_in_memory_lives_as_long_as_it_was_meant_to_when_the_clock_is_set_back(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store, clock: FakeClock
) -> None:
    issued = await tokens.issue(ANN, provider="staff")
    live, stream = await authenticator.find(key(issued)), Stream()
    assert live is not None
    authenticator.in_use.add_stream(live, stream)
    clock.set_back(hours=1)
    await store.heartbeat()
    await authenticator.feed.confirm()
    clock.advance(minutes=15)
    assert authenticator.recall(key(issued)) is None
    assert not stream.ended
    clock.advance(hours=24, minutes=-15)
    authenticator.tick()
    assert stream.ended, "its session has lasted a day"


class Full(Store):
    """Can be read, and not written."""

    async def revoke(self, revocation: object) -> int:
        if self.failing:
            raise ProviderError("the token store cannot be used", cause="database or disk is full")
        return await super().revoke(revocation)  # type: ignore[arg-type]

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        return await MemoryTokenStore.revocations_after(self, sequence)


@pytest.mark.parametrize("kind", list(RevocationKind))
async def test_what_the_store_cannot_write_down_ends_here_all_the_same_and_is_written_later(
    clock: FakeClock, kind: RevocationKind
) -> None:
    """A full store: the token that somebody was told to end must not work on."""
    store = Full(clock=clock)
    tokens = Tokens(store, clock=clock)
    authenticator = TokenAuthenticator(tokens, clock)
    tokens.on_unsaved = authenticator.end_at_once
    issued = await tokens.issue(ANN, provider="staff", origins=(SIGN_IN,))
    other = await tokens.issue(UserInfo("bob"), provider="staff")
    live, stream = await authenticator.find(key(issued)), Stream()
    assert live is not None
    authenticator.in_use.add_stream(live, stream)
    value = {
        RevocationKind.TOKEN: key(issued).hex(),
        RevocationKind.SESSION: issued.session.id,
        RevocationKind.USER: "ann",
        RevocationKind.GROUP: "dev",
        RevocationKind.ORIGIN: SIGN_IN,
        RevocationKind.BEFORE: "",
    }[kind]
    store.failing = True
    with pytest.raises(ProviderError):
        await tokens.revoke(kind, value)
    assert stream.ended
    assert authenticator.recall(key(issued)) is None
    assert await authenticator.find(key(issued)) is None
    assert await tokens.find(issued.token.reveal()) is None
    if kind is not RevocationKind.BEFORE:
        assert await tokens.find(other.token.reveal()) is not None
    with pytest.raises(ProviderError):
        await tokens.save_unsaved()
    store.failing = False
    clock.advance(1)
    again = await tokens.issue(ANN, provider="staff", origins=(SIGN_IN,))
    await tokens.save_unsaved()
    assert not tokens.unsaved
    assert await tokens.find(issued.token.reveal()) is None
    assert await tokens.find(again.token.reveal()) is not None, "who signed in afterwards is in"


async def test_a_token_that_has_expired_or_ended_takes_no_room_any_more(tokens: Tokens, clock: FakeClock) -> None:
    """One that is asked for after its time, and one whose end the store could not write down."""
    authenticator = TokenAuthenticator(tokens, clock)
    for ended in ("expired", "unsaved"):
        issued = await tokens.issue(ANN, provider="me")
        token_digest = digest(issued.token.reveal())
        live = await authenticator.find(token_digest)
        assert live is not None
        if ended == "expired":
            clock.advance(tokens.lifetime.total_seconds() + 1)
            assert authenticator.recall(token_digest) is None
        else:
            authenticator.end_at_once(Revocation(RevocationKind.USER, "ann", None, ""))
        assert (authenticator.in_use.by_digest.held, bytes_of_owner(authenticator.in_use.by_digest, "ann")) == (0, 0), (
            ended
        )


# --- those who tell others of revocations ---


async def test_whoever_waits_for_a_revocation_goes_on_when_it_is_in_force_and_not_before(
    authenticator: TokenAuthenticator, tokens: Tokens
) -> None:
    feed = authenticator.feed
    await feed.confirm()
    assert feed.applied is not None
    waiting = asyncio.ensure_future(feed.wait_until_applied(feed.applied, 3600))
    await turn()
    await feed.confirm()
    await turn()
    assert not waiting.done(), "nothing is new"
    await tokens.revoke(RevocationKind.USER, "ann")
    await turn()
    assert not waiting.done(), "it is written down, and not in force here"
    await feed.confirm()
    await turn()
    assert waiting.done()


async def test_nobody_waits_for_a_revocation_that_is_in_force_already(
    authenticator: TokenAuthenticator, tokens: Tokens
) -> None:
    before = await tokens.sequence()
    await tokens.revoke(RevocationKind.USER, "ann")
    await authenticator.feed.confirm()
    waiting = asyncio.ensure_future(authenticator.feed.wait_until_applied(before, 3600))
    await turn()
    assert waiting.done()


async def test_whoever_waits_before_the_first_look_goes_on_after_it(authenticator: TokenAuthenticator) -> None:
    waiting = asyncio.ensure_future(authenticator.feed.wait_until_applied(0, 3600))
    await turn()
    assert not waiting.done()
    await authenticator.feed.confirm()
    await turn()
    assert waiting.done()


async def test_nobody_waits_for_longer_than_they_said(authenticator: TokenAuthenticator) -> None:
    await authenticator.feed.confirm()
    await authenticator.feed.wait_until_applied(0, 0)
