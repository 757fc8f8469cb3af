"""A store that can be read and not written is not healthy, and the gateway says so before somebody must log out."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.authentication import store_health
from ostiary_gateway.authentication.store_health import StoreHealth
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import CLOCK_TOLERANCE, Tokens
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.stores.sqlite import store_file
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import turn, until


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
    monkeypatch.setattr(store_file, "LEAST_FREE_BYTES", 2**62)
    assert await health.check() == "it cannot be written"


async def test_a_store_that_somebody_locks_is_told_in_time(
    tokens: Tokens, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_health, "PROBE_WAIT_SECONDS", 0.05)
    health = StoreHealth(tokens, clock)
    await health.check()
    clock.advance(60)
    with closing(sqlite3.connect(tmp_path / "tokens.db", isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")
        assert await asyncio.wait_for(health.probe(), 30) == "it takes too long to write"
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
    await asyncio.wait_for(tokens.store.wait_for_revocations(before, 600), 30)
    found = await tokens.find(issued.token.reveal())
    assert found is not None
    assert (found.token.expires_at - clock.now()).total_seconds() == 15 * 60
    running.cancel()


class Counting(MemoryTokenStore):
    """Counts how often it is written to, and can be down."""

    def __init__(self, *, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.writes = 0
        self.down = False

    async def heartbeat(self) -> None:
        self.writes += 1
        if self.down:
            raise ProviderError("the store cannot be written", cause="no space left")
        await super().heartbeat()


@asynccontextmanager
async def checking(store: Counting, clock: FakeClock) -> AsyncIterator[StoreHealth]:
    """Health that is checked in the background, after the first check."""
    health = StoreHealth(Tokens(store, clock=clock), clock)
    running = asyncio.ensure_future(health.run())
    await until(lambda: store.writes == 1)
    await turn()
    try:
        yield health
    finally:
        running.cancel()


async def test_it_is_checked_once_more_for_each_time_that_it_must_hurry(clock: FakeClock) -> None:
    store = Counting(clock=clock)
    async with checking(store, clock) as health:
        await turn(20)
        assert store.writes == 1
        for writes in (2, 3):
            health.hurry()
            await turn(20)
            assert store.writes == writes


async def test_while_it_cannot_be_written_it_is_tried_again_soon(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_health, "RETRY_SECONDS", 0.0)
    store = Counting(clock=clock)
    async with checking(store, clock) as health:
        await turn(20)
        assert store.writes == 1
        store.down = True
        health.hurry()
        await until(lambda: store.writes > 5)


async def test_a_jump_of_the_clock_is_logged_with_its_size_and_checked_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Counting(clock=clock)
    async with checking(store, clock) as health:
        clock.advance(3600)
        health.tick()
        await turn(20)
        assert (store.writes, caplog.records) == (1, []), "time has passed, and nobody has changed the clock"
        clock.set_back(3600.26)
        health.tick()
        health.tick()
        await turn(20)
        assert store.writes == 2
    (record,) = caplog.records
    assert (record.getMessage(), record.levelno) == ("the clock was changed", logging.WARNING)
    assert record.__dict__["seconds"] == -3600.3


async def test_a_correction_within_the_tolerance_of_the_store_is_no_jump(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    health = StoreHealth(Tokens(Counting(clock=clock), clock=clock), clock)
    clock.set_back(CLOCK_TOLERANCE.total_seconds())
    health.tick()
    assert caplog.records == []
    clock.set_back(CLOCK_TOLERANCE.total_seconds() + 1)
    health.tick()
    assert len(caplog.records) == 1


async def test_the_log_says_once_that_it_cannot_be_written_and_once_that_it_can_again(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Counting(clock=clock)
    health = StoreHealth(Tokens(store, clock=clock), clock)
    for down in (False, True, True, False, False):
        store.down = down
        assert await health.check() == ("it cannot be written" if down else "")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "the token store cannot be written: nobody can sign in or out"),
        (logging.WARNING, "the token store can be written again"),
    ]
    assert caplog.records[0].__dict__["cause"] == "no space left"
