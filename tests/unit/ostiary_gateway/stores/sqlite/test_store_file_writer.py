"""One thread writes for all: what waits together is committed together."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ostiary.errors import ProviderError
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, make_session, make_token
from tests.unit.ostiary_gateway.stores.sqlite.stores import add, writer_of


async def test_it_waits_for_the_disk_with_every_commit(store: SqliteTokenStore, clock: FakeClock) -> None:
    await add(store, clock, "a")
    writer = writer_of(store)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"


async def test_many_who_write_at_once_share_one_commit(store: SqliteTokenStore, clock: FakeClock) -> None:
    await add(store, clock, "first")
    said: list[str] = []
    writer_of(store).set_trace_callback(said.append)
    await asyncio.gather(*(add(store, clock, f"s{number}") for number in range(200)))
    assert 1 <= said.count("COMMIT") <= 10
    assert await store.count() == 201


async def test_one_that_fails_takes_none_of_the_others_with_it(store: SqliteTokenStore, clock: FakeClock) -> None:
    await add(store, clock, "taken")
    session = make_session(clock, "thief")
    clash = store.add(session, [make_token(session, "fine"), make_token(session, "taken")])
    outcomes = await asyncio.gather(
        *(add(store, clock, f"a{number}") for number in range(5)),
        clash,
        *(add(store, clock, f"b{number}") for number in range(5)),
        return_exceptions=True,
    )
    assert [isinstance(outcome, ProviderError) for outcome in outcomes] == [False] * 5 + [True] + [False] * 5
    assert await store.count() == 11
    assert await store.find(digest_of("fine")) is None


async def test_a_caller_that_is_cancelled_disturbs_nobody(store: SqliteTokenStore, clock: FakeClock) -> None:
    tasks = [asyncio.ensure_future(add(store, clock, f"s{number}")) for number in range(20)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 19
    assert await store.count() in (19, 20)


async def test_closing_finishes_what_was_asked_for(path: Path, clock: FakeClock) -> None:
    store = SqliteTokenStore(path, clock=clock)
    tasks = [asyncio.ensure_future(add(store, clock, f"s{number}")) for number in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*tasks)
    again = SqliteTokenStore(path, clock=clock)
    assert await again.count() == 50
    await again.close()
