"""The memory store keeps the contract of a token store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ostiary_gateway.interfaces.token_store import TokenStore
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import (
    ObjectStoreContract,
    OriginStoreContract,
    RecordStoreContract,
    SessionPagesContract,
    StoredObjectCountsContract,
    TokenStoreContract,
)
from tests.conformance.token_stores.full_kind import FullKindContract


class TestMemoryTokenStore(
    TokenStoreContract,
    RecordStoreContract,
    ObjectStoreContract,
    StoredObjectCountsContract,
    OriginStoreContract,
    FullKindContract,
    SessionPagesContract,
):
    @pytest.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[TokenStore]:
        store = MemoryTokenStore(clock=clock)
        yield store
        await store.close()
