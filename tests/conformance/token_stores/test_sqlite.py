"""The SQLite store keeps the contract of a token store, alone and with a second process at the same file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.token_store import TokenStore
from ostiary_gateway.stores.sqlite import transactions as changes
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import (
    OriginStoreContract,
    PortableStoreContract,
    SessionPagesContract,
    SharedObjectStoreContract,
    SharedRecordStoreContract,
    SharedTokenStoreContract,
    StoredObjectCountsContract,
)
from tests.conformance.token_stores.full_kind import FullKindContract


class TestSqliteTokenStore(
    SharedTokenStoreContract,
    SharedRecordStoreContract,
    SharedObjectStoreContract,
    StoredObjectCountsContract,
    FullKindContract,
    OriginStoreContract,
    PortableStoreContract,
    SessionPagesContract,
):
    most_records = 500

    @pytest.fixture(autouse=True)
    def fewer_records_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(changes, "MOST_RECORDS", self.most_records)

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
