"""Two token stores over the same data. Part of `SharedTokenStoreContract`."""

from __future__ import annotations

import asyncio

from ostiary.core.abilities import has_trait
from ostiary.interfaces.token_store import Revocation, RevocationKind, SharedBetweenProcesses, TokenStore
from ostiary.testing.clock import FakeClock
from ostiary.testing.token_store.samples import (
    contents,
    digest_of,
    follow,
    head,
    in_minutes,
    make_session,
    make_token,
    renewable_session,
)


class SharingContract:
    """What one process does, another one sees at once; of two that do the same, one does it."""

    async def test_it_says_that_processes_can_share_it(self, store: TokenStore) -> None:
        assert has_trait(store, SharedBetweenProcesses), "declare shared_between_processes = True"

    async def test_what_one_adds_the_other_finds(self, store: TokenStore, other: TokenStore, clock: FakeClock) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        entry = await other.find(digest_of("t1"))
        assert entry is not None
        assert entry.session == session

    async def test_what_one_revokes_the_other_no_longer_finds_and_is_told(
        self, store: TokenStore, other: TokenStore, clock: FakeClock
    ) -> None:
        """T3: the other replica too."""
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        start = await head(other)
        waiting = asyncio.ensure_future(follow(other, start))
        assert await other.find(digest_of("t1")) is not None
        await store.revoke(Revocation(RevocationKind.USER, "ann", by="an operator"))
        assert await other.find(digest_of("t1")) is None
        assert contents(await waiting) == [(RevocationKind.USER, "ann", None, "an operator")]
        assert await head(other) == await head(store) == start + 1

    async def test_when_the_clock_is_set_back_both_agree(
        self, store: TokenStore, other: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session, minutes=5), make_token(session, "t2", minutes=20)])
        clock.advance(minutes=5)
        assert await other.find(digest_of("t1")) is None
        assert await other.find(digest_of("t2")) is not None
        await other.heartbeat()
        clock.set_back(hours=1)
        await store.heartbeat()
        for each in (store, other):
            assert await each.find(digest_of("t1")) is None
            entry = await each.find(digest_of("t2"))
            assert entry is not None
            assert entry.token.expires_at == in_minutes(clock, 15)

    async def test_one_renewal_token_is_spent_once_by_both(
        self, store: TokenStore, other: TokenStore, clock: FakeClock
    ) -> None:
        session = await renewable_session(store, clock)
        attempts = [
            each.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[make_token(session, f"n{number}")])
            for number, each in enumerate([store, other] * 5)
        ]
        assert sorted(await asyncio.gather(*attempts)) == [False] * 9 + [True]

    async def test_both_write_at_once(self, store: TokenStore, other: TokenStore, clock: FakeClock) -> None:
        sessions = [make_session(clock, f"s{number}") for number in range(100)]
        await asyncio.gather(
            *(
                each.add(session, [make_token(session, session.id)])
                for session, each in zip(sessions, [store, other] * 50, strict=True)
            )
        )
        assert await store.count() == await other.count() == 100
