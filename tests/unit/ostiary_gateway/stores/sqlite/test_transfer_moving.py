"""A SQLite token store is read out and filled: what is special about the file. tests/conformance has the contract."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from ostiary_gateway.interfaces.store_capabilities import StoredLog, StoredSession
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, follow, make_session, make_token
from tests.unit.ostiary_gateway.stores.sqlite.stores import add, unavailable


async def test_of_sessions_that_are_imported_together_all_are_stored_or_none(
    store: SqliteTokenStore, clock: FakeClock
) -> None:
    """The second one has a token of somebody else's."""
    await add(store, clock, "there")
    first, second = (replace(make_session(clock, name), sequence=0) for name in ("s1", "s2"))
    new = [StoredSession(first, (make_token(first, "t1"),)), StoredSession(second, (make_token(second, "there"),))]
    await unavailable(store.import_sessions(new))
    assert await store.find(digest_of("t1")) is None
    assert [session.id for session in await store.sessions()] == ["there"]


async def test_a_name_that_is_no_text_is_refused(store: SqliteTokenStore, clock: FakeClock) -> None:
    session = replace(make_session(clock), client="\ud800")
    with pytest.raises(ValueError, match="not text"):
        await store.import_sessions([StoredSession(session, ())])


async def test_a_log_that_cannot_be_written_leaves_the_old_one(store: SqliteTokenStore, clock: FakeClock) -> None:
    await store.revoke(Revocation(RevocationKind.USER, "ann"))
    before = await store.export_log()
    (kept,) = before.revocations
    # The same number twice.
    await unavailable(store.import_log(StoredLog(5, 0, (replace(kept, sequence=3), replace(kept, sequence=3)))))
    assert await store.export_log() == before


async def test_a_row_that_cannot_be_understood_stops_the_export_and_is_not_quoted(
    store: SqliteTokenStore, clock: FakeClock
) -> None:
    await add(store, clock, "ann")
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE sessions SET body = '[\"something private'")
    error = await unavailable(store.export_sessions("", 10))
    assert "private" not in f"{error} {error.cause} {error.__cause__} {error.__context__}"


async def test_who_follows_the_log_is_woken_by_an_import(store: SqliteTokenStore) -> None:
    other = SqliteTokenStore(store.path)
    await other.import_log(StoredLog(3, 3))
    batch = await follow(store, 0)
    assert (batch.head, batch.complete) == (3, False)
    await other.close()
