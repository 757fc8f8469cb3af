"""A token store spends a renewal token once. Part of `TokenStoreContract`."""

from __future__ import annotations

import asyncio

from ostiary.interfaces.token_store import (
    Revocation,
    RevocationKind,
    TokenKind,
    TokenStore,
)
from ostiary.testing.clock import FakeClock
from ostiary.testing.token_store.samples import (
    digest_of,
    follow,
    head,
    make_session,
    make_token,
    of_user,
    renewable_session,
)


class RenewingContract:
    """Renewals: one token spent, a new pair added, and revocations that come meanwhile."""

    async def test_a_renewal_spends_its_token_and_adds_new_ones(self, store: TokenStore, clock: FakeClock) -> None:
        """C1."""
        session = await renewable_session(store, clock)
        clock.advance(minutes=10)
        at = clock.now()
        assert await store.renew(digest_of("r1"), at=at, session=session, tokens=[make_token(session, "t2")])
        assert await store.find(digest_of("t2")) is not None
        assert await store.find(digest_of("t1")) is not None, "the same user: the older token lives out its time"
        entry = await store.find(digest_of("r1"))
        assert entry is not None
        assert (entry.token.kind, entry.token.issued_at) == (TokenKind.SPENT, at)

    async def test_a_renewal_token_is_spent_once(self, store: TokenStore, clock: FakeClock) -> None:
        session = await renewable_session(store, clock)
        attempts = [
            store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[make_token(session, f"n{number}")])
            for number in range(10)
        ]
        assert sorted(await asyncio.gather(*attempts)) == [False] * 9 + [True]
        assert await store.count() == 3

    async def test_only_a_living_renewal_token_of_this_session_renews(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = await renewable_session(store, clock)
        stranger = make_session(clock, "s2")
        await store.add(stranger, [make_token(stranger, "r2", minutes=1, kind=TokenKind.RENEWAL)])
        clock.advance(minutes=1)
        for name, of in [("t1", session), ("nobody", session), ("r1", stranger), ("r2", stranger)]:
            tokens = [make_token(of, "new")]
            assert not await store.renew(digest_of(name), at=clock.now(), session=of, tokens=tokens)
        assert await store.find(digest_of("new")) is None

    async def test_a_revoked_session_is_not_brought_back_by_a_renewal(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        """T3."""
        session = await renewable_session(store, clock)
        await store.revoke(Revocation(RevocationKind.USER, "ann", clock.now()))
        clock.advance(1)
        tokens = [make_token(session, "t2")]
        assert not await store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=tokens)
        assert await store.session("s1") is None

    async def test_an_older_revocation_of_a_group_does_not_end_who_joins_it_now(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = await renewable_session(store, clock)
        clock.advance(1)
        await store.revoke(Revocation(RevocationKind.GROUP, "new", clock.now()))
        clock.advance(1)
        joined = of_user(session, "ann", "new")
        assert await store.renew(digest_of("r1"), at=clock.now(), session=joined, tokens=[])
        assert await store.sessions(group="new") == [joined]

    async def test_a_group_that_is_revoked_while_somebody_joins_it_is_not_renewed(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = await renewable_session(store, clock)
        since = await head(store)
        clock.set_back(0.5)
        await store.revoke(Revocation(RevocationKind.GROUP, "shut"))
        joined = of_user(session, "ann", "shut")
        tokens = [make_token(session, "t2")]
        assert not await store.renew(digest_of("r1"), at=clock.now(), session=joined, tokens=tokens, since=since)
        assert await store.session("s1") == session
        assert await store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=tokens, since=since)

    async def test_older_access_tokens_end_when_a_renewal_changes_the_user(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        """T3: a group that was taken away is gone with the renewal, also from caches that know the older token."""
        session = await renewable_session(store, clock)
        before = await head(store)
        without = of_user(session, "ann", "dev")
        assert await store.renew(digest_of("r1"), at=clock.now(), session=without, tokens=[make_token(session, "t2")])
        assert await store.find(digest_of("t1")) is None
        entry = await store.find(digest_of("t2"))
        assert entry is not None
        assert entry.session.user.groups == ("dev",)
        (revocation,) = (await follow(store, before)).revocations
        assert (revocation.kind, revocation.value) == (RevocationKind.TOKEN, digest_of("t1").hex())
        assert revocation.owner == "ann"
        assert await store.find(digest_of("r1")) is not None

    async def test_a_spent_token_cannot_be_made_to_be_forgotten(self, store: TokenStore, clock: FakeClock) -> None:
        session = await renewable_session(store, clock)
        assert await store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[])
        assert await store.revoke(Revocation(RevocationKind.TOKEN, digest_of("r1").hex(), clock.now())) == 0
        assert await store.find(digest_of("r1")) is not None
