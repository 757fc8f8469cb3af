"""The file of the SQLite token store: created once, for its owner, and left alone if it is not ours."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, SessionKind
from ostiary_gateway.stores.sqlite import database_file
from ostiary_gateway.stores.sqlite.database_file import TABLES
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.stores.stored_session import KINDS, micros
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of, make_token
from tests.unit.ostiary_gateway.stores.sqlite.stores import add, unavailable

VERSION_1 = """
CREATE TABLE sessions (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, username TEXT NOT NULL,
    created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE session_groups (name TEXT, session INTEGER, PRIMARY KEY (name, session)) WITHOUT ROWID;
CREATE TABLE tokens (digest BLOB PRIMARY KEY, session INTEGER NOT NULL, kind INTEGER NOT NULL,
    issued_at INTEGER NOT NULL, expires_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE revocations (sequence INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, value TEXT NOT NULL,
    at INTEGER NOT NULL, author TEXT NOT NULL, keep_until INTEGER NOT NULL);
CREATE TABLE records (number INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE,
    expires_at INTEGER NOT NULL, data BLOB NOT NULL);
PRAGMA application_id = 0x6F737469;
PRAGMA user_version = 1;
"""


async def test_the_file_and_its_companions_are_for_their_owner_only(store: SqliteTokenStore, clock: FakeClock) -> None:
    await add(store, clock, "a")
    files = sorted(Path(store.path).parent.iterdir())
    assert [file.name for file in files] == ["tokens.db", "tokens.db-shm", "tokens.db-wal"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


async def test_a_file_that_everybody_may_write_to_is_not_trusted(path: Path) -> None:
    path.touch()
    path.chmod(0o666)
    error = await unavailable(SqliteTokenStore(path).count())
    assert error.hint == f"chmod 600 {path}"


async def test_stores_that_create_the_same_file_at_once_agree(path: Path, clock: FakeClock) -> None:
    def create() -> None:
        async def once() -> None:
            store = SqliteTokenStore(path, clock=clock)
            await store.count()
            await store.close()

        asyncio.run(once())

    await asyncio.gather(*(asyncio.to_thread(create) for _ in range(8)))


async def test_who_holds_the_folder_for_ever_does_not_keep_the_store_shut(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_file, "LOCK_SECONDS", 0.05)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        store = SqliteTokenStore(path, clock=clock)
        assert await store.count() == 0
        await store.close()
    finally:
        os.close(folder)


@pytest.mark.parametrize("made", ["directory", "missing folder", "garbage", "truncated"])
async def test_a_file_that_is_no_store_is_an_outage(path: Path, clock: FakeClock, made: str) -> None:
    if made == "directory":
        path.mkdir()
    elif made == "missing folder":
        path = path.parent / "nowhere" / "tokens.db"
    elif made == "garbage":
        path.write_bytes(os.urandom(8192))
    else:
        good = SqliteTokenStore(path, clock=clock)
        await add(good, clock, "a")
        await good.close()
        path.write_bytes(path.read_bytes()[:5000])
    store = SqliteTokenStore(path, clock=clock)
    error = await unavailable(store.find(digest_of("a")))
    assert str(path) in str(error)
    await unavailable(add(store, clock, "b"))
    await unavailable(store.revocations_after(0))
    await unavailable(store.heartbeat())
    await store.close()


async def test_a_file_of_another_schema_is_left_alone(path: Path, clock: FakeClock) -> None:
    store = SqliteTokenStore(path, clock=clock)
    await add(store, clock, "a")
    await store.close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 3")
    before = path.read_bytes()
    error = await unavailable(SqliteTokenStore(path, clock=clock).find(digest_of("a")))
    assert "version 3" in (error.cause or "")
    assert path.read_bytes() == before


async def test_a_file_of_the_schema_before_is_upgraded_and_its_lock_out_is_lifted(path: Path, clock: FakeClock) -> None:
    """Nobody is signed out, numbers go on, and a mark that lies years ahead keeps nobody out any more."""
    now = micros(clock.now())
    with closing(sqlite3.connect(path)) as old:
        old.executescript(VERSION_1)
        body = '["u-1",["dev"],[],"staff",[],""]'
        old.execute("INSERT INTO sessions VALUES (1, 's1', 'ann', ?, ?, ?)", (now, now + 10**9, body))
        old.execute("INSERT INTO tokens VALUES (?, 1, 0, ?, ?)", (digest_of("t1"), now, now + 10**9))
        old.execute("INSERT INTO revocations VALUES (7, 'before', '', ?, 'root', ?)", (now * 2, now * 2))
        old.commit()
    path.chmod(0o600)
    store = SqliteTokenStore(path, clock=clock)
    assert await store.find(digest_of("t1")) is not None
    assert (await store.revocations_after(None)).head == 7
    await add(store, clock, "s2")
    assert await store.revoke(Revocation(RevocationKind.USER, "ann")) == 2
    assert [each.sequence for each in (await store.revocations_after(7)).revocations] == [8]
    await store.close()


async def test_a_file_of_another_program_is_left_alone(path: Path, clock: FakeClock) -> None:
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE notes (text)")
        foreign.commit()
    before = path.read_bytes()
    await unavailable(SqliteTokenStore(path, clock=clock).count())
    assert path.read_bytes() == before


OLD_SESSION = "INSERT INTO sessions (id, username, created_at, expires_at, body, sequence) VALUES (?, ?, ?, ?, ?, ?)"
OLD_TOKEN = "INSERT INTO tokens (digest, session, kind, issued_at, expires_at) VALUES (?, ?, ?, ?, ?)"


def _sign_in_as_before(db: sqlite3.Connection, clock: FakeClock, name: str) -> None:
    """As a version writes that knows neither kinds of sessions nor delegations."""
    start, end = micros(clock.now()), micros(clock.now() + timedelta(hours=1))
    body = '["u-1",["dev"],[],"staff",[],"",""]'
    number = db.execute(OLD_SESSION, (name, "ann", start, end, body, 0)).lastrowid
    db.execute(OLD_TOKEN, (digest_of(name), number, 0, start, end))


async def test_a_file_without_what_came_later_gets_it_and_the_version_before_can_go_on(
    path: Path, clock: FakeClock
) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in TABLES:
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {database_file.APPLICATION_ID}")
        db.execute("PRAGMA user_version = 2")
        _sign_in_as_before(db, clock, "before")
        db.commit()
        store = SqliteTokenStore(path, clock=clock)
        session = await store.session("before")
        assert session is not None
        assert (session.kind, session.name, session.last_used_at) == (SessionKind.SIGN_IN, "", None)
        assert await store.add_tokens("before", [replace(make_token(session, "narrowed"), delegation="less")])
        _sign_in_as_before(db, clock, "meanwhile")
        db.commit()
        for name in ("before", "meanwhile", "narrowed"):
            assert await store.find(digest_of(name)) is not None
        # The version before knows the kinds 0 to 3, and refuses any other.
        (kind,) = db.execute("SELECT kind FROM tokens WHERE digest = ?", (digest_of("narrowed"),)).fetchone()
        assert kind not in KINDS.values()
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        # And the later index, which holds what that version has added meanwhile.
        indexed = "SELECT count(*) FROM sessions INDEXED BY sessions_by_kind WHERE kind = 0"
        assert db.execute(indexed).fetchone() == (2,)
        await store.close()
