"""A token store whose clock is set back. Part of `TokenStoreContract`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ostiary.errors import LoginRefused
from ostiary.interfaces.token_store import (
    Revocation,
    RevocationKind,
    TokenStore,
)
from ostiary.testing.clock import FakeClock
from ostiary.testing.token_store.samples import digest_of, head, in_minutes, make_session, make_token


class ClockSetBackContract:
    """What is stored lives as long as it was meant to, and what has ended stays ended."""

    @pytest.mark.parametrize(
        ("kind", "value"), [(RevocationKind.USER, "ann"), (RevocationKind.GROUP, "ops"), (RevocationKind.BEFORE, "")]
    )
    @pytest.mark.parametrize("corrected", [False, True])
    async def test_a_revocation_ends_sessions_that_began_before_the_clock_was_set_back(
        self, store: TokenStore, clock: FakeClock, kind: RevocationKind, value: str, corrected: bool
    ) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        clock.set_back(hours=1)
        if corrected:
            await store.heartbeat()
        assert await store.revoke(Revocation(kind, value)) == 1
        assert await store.find(digest_of("t1")) is None
        again = make_session(clock, "s2", sequence=await head(store))
        await store.add(again, [make_token(again, "t2")])
        assert await store.find(digest_of("t2")) is not None

    async def test_a_sign_in_under_way_is_revoked_although_the_clock_was_set_back(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock, sequence=await head(store))
        clock.set_back(hours=1)
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        with pytest.raises(LoginRefused):
            await store.add(session, [])

    @pytest.mark.parametrize("corrected", [False, True])
    async def test_what_has_expired_is_not_good_again_when_the_clock_is_set_back(
        self, store: TokenStore, clock: FakeClock, corrected: bool
    ) -> None:
        session = make_session(clock, expires_at=clock.now() + timedelta(minutes=30))
        await store.add(session, [make_token(session, minutes=5), make_token(session, "t2", minutes=20)])
        clock.advance(minutes=5)
        assert await store.find(digest_of("t1")) is None
        clock.set_back(hours=1)
        if corrected:
            await store.heartbeat()
        assert await store.find(digest_of("t1")) is None
        assert await store.find(digest_of("t2")) is not None

    async def test_everything_lives_as_long_as_it_was_meant_to_when_the_clock_is_set_back(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock, expires_at=clock.now() + timedelta(minutes=10))
        await store.add(session, [make_token(session, minutes=5)])
        clock.advance(minutes=1)
        await store.heartbeat()
        before = await head(store)
        clock.set_back(hours=1)
        await store.heartbeat()
        assert not (await store.revocations_after(before)).complete, "what was remembered has other times now"
        entry = await store.find(digest_of("t1"))
        assert entry is not None
        assert entry.token.expires_at == in_minutes(clock, 4)
        assert entry.session.expires_at == in_minutes(clock, 9)
        clock.advance(minutes=4)
        assert await store.find(digest_of("t1")) is None
        clock.advance(minutes=5)
        assert await store.session("s1") is None

    async def test_who_signs_in_after_the_clock_was_set_back_is_in(self, store: TokenStore, clock: FakeClock) -> None:
        old = make_session(clock)
        await store.add(old, [make_token(old)])
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        await store.heartbeat()
        clock.set_back(hours=1)
        session = make_session(clock, "s2", sequence=await head(store))
        await store.add(session, [make_token(session, "t2", minutes=5)])
        assert await store.find(digest_of("t2")) is not None
        clock.advance(minutes=5)
        assert await store.find(digest_of("t2")) is None

    async def test_a_clock_that_is_set_back_by_a_moment_is_waited_for(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session, minutes=1)])
        clock.advance(minutes=1)
        await store.heartbeat()
        before = await head(store)
        clock.set_back(1)
        await store.heartbeat()
        assert await head(store) == before
        assert await store.find(digest_of("t1")) is None
