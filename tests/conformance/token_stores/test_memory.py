"""The memory store keeps the contract of a token store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ostiary.interfaces.token_store import TokenStore
from ostiary.plugins.memory.token_store import MemoryTokenStore
from ostiary.testing import FakeClock
from ostiary.testing.token_store import (
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
