"""Whether a SQLite token store is whole, and who has it open."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.open_store import opened_elsewhere
from tests.unit.ostiary_gateway.stores.sqlite.stores import add, unavailable


async def test_a_store_that_is_whole_has_no_problems(store: SqliteTokenStore, clock: FakeClock) -> None:
    await add(store, clock, "ann")
    await store.revoke(Revocation(RevocationKind.USER, "bob"))
    report = await store.examine()
    assert report.problems == ()
    facts = dict(report.facts)
    assert facts["schema"] == "version 2 of 2"
    assert store.path in facts["file"]
    assert "mode 600" in facts["file"]


async def test_rows_that_belong_to_nothing_are_counted(store: SqliteTokenStore, clock: FakeClock) -> None:
    for name in ("ann", "bob"):
        await add(store, clock, name)
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("DELETE FROM sessions WHERE id = 'ann'")
        db.execute("INSERT INTO revocations VALUES (7, 'user', 'ann', NULL, '', 0, 0, 0, '')")
        db.execute("UPDATE sqlite_sequence SET seq = 5 WHERE name = 'revocations'")
    problems = (await store.examine()).problems
    assert problems == (
        "1 tokens have no session",
        "2 groups have no session",
        "1 revocations have numbers that are not given out yet",
    )


async def test_a_damaged_file_is_a_problem_or_cannot_be_read(path: Path, clock: FakeClock) -> None:
    store = SqliteTokenStore(path, clock=clock)
    for number in range(200):
        await add(store, clock, f"user {number}")
    await store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        # The page with the schema stays as it is, and half of the others are gone.
        file.seek(8192)
        file.write(b"\xff" * (size // 2))
    damaged = SqliteTokenStore(path, clock=clock)
    try:
        problems = (await damaged.examine()).problems
        assert problems
        assert all(problem.startswith("the file is damaged: ") for problem in problems)
    finally:
        await damaged.close()


async def test_a_file_that_only_this_process_has_open_is_used_by_nobody_else(store: SqliteTokenStore) -> None:
    await store.heartbeat()
    second = SqliteTokenStore(store.path)
    await second.heartbeat()
    assert await store.others_using() == ()
    assert await store.others_using() == ()
    await second.close()


async def test_another_process_that_has_the_file_open_is_named_until_it_ends(store: SqliteTokenStore) -> None:
    await store.heartbeat()
    with opened_elsewhere(Path(store.path)) as other:
        (name,) = await store.others_using()
        assert name.startswith(f"process {other.pid} (python")
    assert await store.others_using() == ()


async def test_looking_for_others_gives_up_no_lock_of_our_own(store: SqliteTokenStore, path: Path) -> None:
    """Closing a descriptor of a file ends all locks that a process has on it; SQLite's among them."""
    await store.heartbeat()
    await store.others_using()
    with opened_elsewhere(path) as other:
        assert f"process {os.getpid()} " in other.sees


async def test_nothing_is_said_once_it_is_closed(store: SqliteTokenStore) -> None:
    await store.close()
    await unavailable(store.examine())
    await unavailable(store.others_using())
