"""The conformance suite for token stores: what `ostiary_gateway.interfaces.token_store` promises, as tests.

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
`PortableStoreContract`, one that ends sessions by the sign-in that they came from, from `OriginStoreContract`, and one
that lists its sessions page by page from `SessionPagesContract`.
"""

from __future__ import annotations

import pytest

from ostiary.testing import FakeClock
from ostiary_gateway.interfaces.token_store import TokenStore
from ostiary_gateway.testing.capabilities import check_members
from ostiary_gateway.testing.token_store.items import (
    ObjectStoreContract,
    ReplicaStoreContract,
    SharedObjectStoreContract,
    SharingContract,
    StoredObjectCountsContract,
)
from ostiary_gateway.testing.token_store.programs import ProgramsContract
from ostiary_gateway.testing.token_store.revoking import ClockSetBackContract, RevokingContract
from ostiary_gateway.testing.token_store.samples import digest_of, follow, make_session, make_token
from ostiary_gateway.testing.token_store.sessions import (
    RecordStoreContract,
    RenewingContract,
    SessionPagesContract,
    SharedRecordStoreContract,
    StoringContract,
)
from ostiary_gateway.testing.token_store.transfer import OriginStoreContract, PortableStoreContract

__all__ = [
    "ObjectStoreContract",
    "OriginStoreContract",
    "PortableStoreContract",
    "RecordStoreContract",
    "ReplicaStoreContract",
    "SessionPagesContract",
    "SharedObjectStoreContract",
    "SharedRecordStoreContract",
    "SharedTokenStoreContract",
    "StoredObjectCountsContract",
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


class SharedTokenStoreContract(TokenStoreContract, SharingContract):
    """For stores that several processes share. Give the fixture `other` too: a second store over the same data."""
