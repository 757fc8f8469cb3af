"""A store that can be read and not written is not healthy, and the gateway says so before somebody must log out."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from ostiary.core.tokens import Tokens
from ostiary.errors import ProviderError
from ostiary.gateway.authenticate.store_health import StoreHealth
from ostiary.interfaces.token_store import RevocationKind
from ostiary.model import UserInfo
from ostiary.plugins.sqlite import token_store as sqlite
from ostiary.plugins.sqlite.token_store import SqliteTokenStore
from ostiary.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def tokens(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Tokens]:
    store = SqliteTokenStore(tmp_path / "tokens.db", clock=clock)
    yield Tokens(store, clock=clock)
    await store.close()


def writer_of(tokens: Tokens) -> sqlite3.Connection:
    assert isinstance(tokens.store, SqliteTokenStore)
    return tokens.store._open().writer._connection


async def test_a_store_that_cannot_be_written_is_told(tokens: Tokens, clock: FakeClock) -> None:
    health = StoreHealth(tokens, clock)
    assert await health.check() == ""
    writer_of(tokens).execute("PRAGMA query_only = ON")
    clock.advance(1)
    assert await health.check() == "it cannot be written"
    writer_of(tokens).execute("PRAGMA query_only = OFF")
    assert await health.check() == ""


async def test_a_full_disk_is_told_although_a_small_write_would_still_fit(
    tokens: Tokens, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = StoreHealth(tokens, clock)
    assert await health.check() == ""
    clock.advance(60)
    monkeypatch.setattr(sqlite, "LEAST_FREE_BYTES", 2**62)
    assert await health.check() == "it cannot be written"


async def test_a_store_that_somebody_locks_is_told_in_time(tokens: Tokens, clock: FakeClock, tmp_path: Path) -> None:
    health = StoreHealth(tokens, clock)
    await health.check()
    clock.advance(60)
    with closing(sqlite3.connect(tmp_path / "tokens.db", isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")
        assert await asyncio.wait_for(health.probe(), 4) == "it takes too long to write"
        neighbour.execute("ROLLBACK")
    assert await health.check() == ""


async def test_many_probes_write_once(tokens: Tokens, clock: FakeClock) -> None:
    health = StoreHealth(tokens, clock)
    await asyncio.gather(*(health.probe() for _ in range(10)))
    changes = writer_of(tokens).total_changes
    clock.advance(1.9)
    await health.probe()
    assert writer_of(tokens).total_changes == changes
    clock.advance(0.1)
    await health.probe()
    assert writer_of(tokens).total_changes > changes


async def test_what_could_not_be_written_down_is_written_when_the_store_is_well(
    tokens: Tokens, clock: FakeClock
) -> None:
    issued = await tokens.issue(UserInfo("ann"), provider="staff")
    writer_of(tokens).execute("PRAGMA query_only = ON")
    with pytest.raises(ProviderError):
        await tokens.revoke(RevocationKind.SESSION, issued.session.id)
    writer_of(tokens).execute("PRAGMA query_only = OFF")
    assert await tokens.store.session(issued.session.id) is not None
    await StoreHealth(tokens, clock).check()
    assert await tokens.store.session(issued.session.id) is None


async def test_when_the_clock_is_set_back_the_store_hears_of_it_at_once(tokens: Tokens, clock: FakeClock) -> None:
    health = StoreHealth(tokens, clock)
    issued = await tokens.issue(UserInfo("ann"), provider="staff")
    running = asyncio.ensure_future(health.run())
    while not writer_of(tokens).total_changes or health._lock.locked():
        await asyncio.sleep(0)
    before = await tokens.sequence()
    clock.set_back(hours=1)
    health.tick()
    await asyncio.wait_for(tokens.store.wait_for_revocations(before, 60), 5)
    found = await tokens.find(issued.token.reveal())
    assert found is not None
    assert (found.token.expires_at - clock.now()).total_seconds() == 15 * 60
    running.cancel()
