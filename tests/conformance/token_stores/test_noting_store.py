"""The store that tests of replicas use keeps the contract of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import ReplicaStoreContract
from tests.support.noting_store import NotingStore


class TestNotingStore(ReplicaStoreContract):
    @pytest.fixture
    async def store(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[NotingStore]:
        store = NotingStore(str(tmp_path / "tokens.db"), clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[NotingStore]:
        store = NotingStore(str(tmp_path / "tokens.db"), clock=clock)
        yield store
        await store.close()
