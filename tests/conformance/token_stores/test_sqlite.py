"""The SQLite store keeps the contract of a token store, alone and with a second process at the same file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ostiary.interfaces.token_store import TokenStore
from ostiary.plugins.sqlite.token_store import SqliteTokenStore
from ostiary.testing import FakeClock
from ostiary.testing.token_store import (
    OriginStoreContract,
    PortableStoreContract,
    SharedObjectStoreContract,
    SharedRecordStoreContract,
    SharedTokenStoreContract,
)
from tests.conformance.token_stores.full_kind import FullKindContract


class TestSqliteTokenStore(
    SharedTokenStoreContract,
    SharedRecordStoreContract,
    SharedObjectStoreContract,
    FullKindContract,
    OriginStoreContract,
    PortableStoreContract,
):
    @pytest.fixture
    async def store(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[TokenStore]:
        store = SqliteTokenStore(tmp_path / "tokens.db", clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[TokenStore]:
        store = SqliteTokenStore(tmp_path / "tokens.db", clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def empty(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[TokenStore]:
        store = SqliteTokenStore(tmp_path / "empty.db", clock=clock)
        yield store
        await store.close()
