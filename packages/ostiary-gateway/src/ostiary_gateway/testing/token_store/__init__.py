"""The conformance suite for token stores (`ostiary_gateway.interfaces.token_store`):

    class TestMyStore(TokenStoreContract):
        @pytest.fixture
        async def store(self, clock):
            store = MyStore(clock=clock)
            yield store
            await store.close()

Requires pytest and pytest-asyncio. Nothing here waits for real time to pass. A store that several processes can share
inherits from `SharedTokenStoreContract` instead, and provides with the fixture `other` a second instance over the same
data. Inherit in addition from the suites of its capabilities:

    RecordStoreContract     temporary records of sign-ins; or its shared form
    ReplicaStoreContract    messages between replicas, and an owner
    ObjectStoreContract     objects; or its shared form
    PortableStoreContract   contents that can be moved to another store
    OriginStoreContract     ending sessions by the sign-in that they came from
    SessionPagesContract    listing sessions page by page
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
    """Inherit from this class and provide the fixture `store`."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    async def test_its_members_are_spelt_and_shaped_as_the_contract_says(self, store: TokenStore) -> None:
        check_members("token_store", store)


class SharedTokenStoreContract(TokenStoreContract, SharingContract):
    """For stores that several processes share. Also requires the fixture `other`: a second store over the same data."""
