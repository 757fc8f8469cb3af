"""The conformance suite for token stores: what `ostiary.interfaces.token_store` promises, as tests.

    class TestMyStore(TokenStoreContract):
        @pytest.fixture
        async def store(self, clock):
            store = MyStore(clock=clock)
            yield store
            await store.close()

It needs pytest and pytest-asyncio. A store that several processes can share inherits from `SharedTokenStoreContract`
in its place, and gives with the fixture `other` a second one over the same data. Nothing here waits for time to pass.
A store that keeps the records of logins too inherits from `RecordStoreContract` as well, or from its shared form. One
for several replicas, which keeps notes and an owner, also inherits from `ReplicaStoreContract`, one that keeps objects
from `ObjectStoreContract` or its shared form, one whose contents can be moved to another store from
`PortableStoreContract`, and one that ends sessions by the sign-in that they came from, from `OriginStoreContract`.
"""

from __future__ import annotations

import asyncio

import pytest

from ostiary.core.abilities import has_trait
from ostiary.interfaces.token_store import Revocation, RevocationKind, SharedBetweenProcesses, TokenStore
from ostiary.testing.abilities import check_members
from ostiary.testing.clock import FakeClock
from ostiary.testing.token_store.clock_set_back import ClockSetBackContract
from ostiary.testing.token_store.moving import PortableStoreContract
from ostiary.testing.token_store.objects import ObjectStoreContract, SharedObjectStoreContract
from ostiary.testing.token_store.origins import OriginStoreContract
from ostiary.testing.token_store.programs import ProgramsContract
from ostiary.testing.token_store.records import RecordStoreContract, SharedRecordStoreContract
from ostiary.testing.token_store.renewing import RenewingContract
from ostiary.testing.token_store.replicas import ReplicaStoreContract
from ostiary.testing.token_store.revoking import RevokingContract
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
from ostiary.testing.token_store.storing import StoringContract

__all__ = [
    "ObjectStoreContract",
    "OriginStoreContract",
    "PortableStoreContract",
    "RecordStoreContract",
    "ReplicaStoreContract",
    "SharedObjectStoreContract",
    "SharedRecordStoreContract",
    "SharedTokenStoreContract",
    "TokenStoreContract",
    "digest_of",
    "follow",
    "make_session",
    "make_token",
]


@pytest.mark.asyncio
class TokenStoreContract(StoringContract, RevokingContract, ClockSetBackContract, RenewingContract, ProgramsContract):
    """Inherit from it, and give the fixture `store`."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    async def test_its_members_are_spelt_and_shaped_as_the_contract_says(self, store: TokenStore) -> None:
        check_members("token_store", store)


class SharedTokenStoreContract(TokenStoreContract):
    """For stores that several processes share. Give the fixture `other` too: a second store over the same data."""

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
