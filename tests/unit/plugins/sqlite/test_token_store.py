"""The SQLite store as a file: its mode, its neighbours, its accidents. tests/conformance has the contract."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.catalog import Context
from ostiary.core.config import Reading, parse
from ostiary.core.tokens import Tokens, digest
from ostiary.errors import ProviderError
from ostiary.interfaces.token_store import Revocation, RevocationBatch, RevocationKind, Session
from ostiary.model import UserInfo
from ostiary.plugins.sqlite import changes, database_file, file_watch, schema
from ostiary.plugins.sqlite import log as sqlite_log
from ostiary.plugins.sqlite.token_store import SqliteTokenStore
from ostiary.testing import FakeClock
from ostiary.testing.token_store import digest_of, follow, make_session, make_token


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.db"


@pytest.fixture
async def store(path: Path, clock: FakeClock) -> AsyncIterator[SqliteTokenStore]:
    store = SqliteTokenStore(path, clock=clock)
    yield store
    await store.close()


async def add(store: SqliteTokenStore, clock: FakeClock, name: str) -> None:
    session = make_session(clock, name)
    await store.add(session, [make_token(session, name)])


def writer_of(store: SqliteTokenStore) -> sqlite3.Connection:
    return store._open().writer._connection


async def unavailable(work: object) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await work  # type: ignore[misc]
    assert caught.value.code == "token-store-unavailable"
    return caught.value


# --- configuration ---


def test_its_path_is_meant_from_the_configuration(tmp_path: Path) -> None:
    reading = Reading(parse("path: ostiary.db"))
    store = SqliteTokenStore.from_config(reading.root, Context(directory=tmp_path))
    assert store.path == str(tmp_path / "ostiary.db")
    assert reading.problems == []
    assert list(tmp_path.iterdir()) == [], "nothing is opened before it is needed"


def test_a_configuration_without_a_path_is_a_mistake() -> None:
    reading = Reading(parse("{}"))
    SqliteTokenStore.from_config(reading.root, Context())
    assert [problem.place.path for problem in reading.problems] == ["path"]


# --- the file ---


async def test_what_is_stored_survives_a_restart(path: Path, clock: FakeClock) -> None:
    """C3."""
    first = SqliteTokenStore(path, clock=clock)
    await add(first, clock, "kept")
    await add(first, clock, "revoked")
    await first.revoke(Revocation(RevocationKind.SESSION, "revoked", clock.now()))
    await first.close()
    second = SqliteTokenStore(path, clock=clock)
    assert await second.find(digest_of("kept")) is not None
    assert await second.find(digest_of("revoked")) is None
    assert (await second.count(), len(await second.sessions())) == (1, 1)
    await second.close()


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


async def test_no_token_is_on_the_disk(store: SqliteTokenStore, clock: FakeClock) -> None:
    """C3, S23."""
    issued = await Tokens(store, clock=clock).issue(UserInfo("ann"), provider="staff")
    written = b"".join(file.read_bytes() for file in Path(store.path).parent.iterdir())
    assert digest(issued.token.reveal()) in written
    for token in (issued.token, issued.renewal):
        assert token.reveal()[4:30].encode() not in written


async def test_it_waits_for_the_disk_with_every_commit(store: SqliteTokenStore, clock: FakeClock) -> None:
    await add(store, clock, "a")
    writer = writer_of(store)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(names=st.lists(NAMES, min_size=5, max_size=5), groups=st.lists(NAMES, max_size=4), micros=st.integers(0, 2**50))
@settings(max_examples=60)
def test_a_row_holds_a_session_exactly(names: list[str], groups: list[str], micros: int) -> None:
    """S14."""
    begun = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    username, uid, provider, client, key = names
    user = UserInfo(username, uid, tuple(groups), ((key, tuple(groups)),))
    session = Session("s", user, provider, begun, begun + timedelta(1), tuple((g, uid) for g in groups), client)
    with closing(database_file.connect(":memory:")) as db:
        database_file.prepare(db)
        assert changes.add(db, session, [], now=begun, seen=sqlite_log.Seen())
        query, arguments = schema.select_sessions(username, groups[0] if groups else None, now=begun, limit=9)
        assert [schema.decode_session(row) for row in db.execute(query, arguments)] == [session]


# --- one thread writes for all ---


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


# --- neighbours ---


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


async def test_a_neighbour_that_writes_for_long_holds_up_no_look_up(
    store: SqliteTokenStore, path: Path, clock: FakeClock
) -> None:
    await add(store, clock, "a")
    with closing(sqlite3.connect(path, isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(add(store, clock, "b"))
        assert await store.find(digest_of("a")) is not None
        assert not writing.done()
        neighbour.execute("COMMIT")
        await writing
    assert await store.find(digest_of("b")) is not None


async def test_a_neighbour_that_never_lets_go_is_an_outage(
    store: SqliteTokenStore, path: Path, clock: FakeClock
) -> None:
    await add(store, clock, "a")
    writer_of(store).execute("PRAGMA busy_timeout = 20")
    with closing(sqlite3.connect(path, isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")
        await unavailable(add(store, clock, "b"))
        neighbour.execute("ROLLBACK")
    await add(store, clock, "b")


async def test_a_revocation_by_another_connection_is_told_within_moments(path: Path, clock: FakeClock) -> None:
    """S64, S65: the file is touched, which wakes the other; it does not look before its hour is over."""
    store, command = SqliteTokenStore(path, clock=clock), SqliteTokenStore(path, clock=clock)
    waiting = asyncio.ensure_future(store.wait_for_revocations(0, 3600))
    while not store._waiting:
        await asyncio.sleep(0)
    await command.revoke(Revocation(RevocationKind.USER, "ann", clock.now()))
    await asyncio.wait_for(waiting, 5)
    assert [each.value for each in (await store.revocations_after(0)).revocations] == ["ann"]
    await command.close()
    await store.close()


async def test_without_inotify_revocations_are_looked_for(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "_watch", lambda path: None)
    store, command = SqliteTokenStore(path, clock=clock), SqliteTokenStore(path, clock=clock)
    waiting = asyncio.ensure_future(follow(store, 0))
    await command.revoke(Revocation(RevocationKind.USER, "ann", clock.now()))
    assert [each.value for each in (await waiting).revocations] == ["ann"]
    await command.close()
    await store.close()


async def test_who_waits_for_revocations_lets_the_processor_rest(
    store: SqliteTokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing happens, the file is looked at once per wait, however long that is."""
    looks = 0

    async def count(sequence: int | None) -> RevocationBatch:
        nonlocal looks
        looks += 1
        return RevocationBatch(0)

    monkeypatch.setattr(store, "revocations_after", count)
    await store.wait_for_revocations(0, 0.3)
    assert looks == 1


# --- accidents ---


async def test_a_full_disk_loses_nothing_that_was_acknowledged(store: SqliteTokenStore, clock: FakeClock) -> None:
    await add(store, clock, "kept")
    writer = writer_of(store)
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages}")
    names = [f"s{number}" for number in range(200)]
    outcomes = [await asyncio.gather(add(store, clock, name), return_exceptions=True) for name in names]
    failed = {name: error for name, (error,) in zip(names, outcomes, strict=True) if error is not None}
    assert {type(error) for error in failed.values()} == {ProviderError}
    assert all("full" in str(error) and "token-store-unavailable" in str(error) for error in failed.values())
    refused, acknowledged = list(failed), ["kept", *(name for name in names if name not in failed)]
    for name in acknowledged:
        assert await store.find(digest_of(name)) is not None
    for name in refused:
        assert await store.find(digest_of(name)) is None
        assert await store.session(name) is None
    writer.execute("PRAGMA max_page_count = 100000")
    await add(store, clock, refused[0])


async def test_a_file_that_cannot_be_written_is_an_outage_for_writers_only(path: Path, clock: FakeClock) -> None:
    store = SqliteTokenStore(path, clock=clock)
    await add(store, clock, "a")
    writer_of(store).execute("PRAGMA query_only = ON")
    await unavailable(add(store, clock, "b"))
    await unavailable(store.revoke(Revocation(RevocationKind.USER, "ann", clock.now())))
    assert await store.find(digest_of("a")) is not None
    await store.close()


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


async def test_a_damaged_page_is_an_outage_and_not_an_absent_token(path: Path, clock: FakeClock) -> None:
    """T5."""
    store = SqliteTokenStore(path, clock=clock)
    await asyncio.gather(*(add(store, clock, f"s{number}") for number in range(300)))
    await store.close()
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    again = SqliteTokenStore(path, clock=clock)
    await unavailable(again.find(digest_of("s1")))
    await again.close()


async def test_a_row_that_cannot_be_understood_is_an_outage_and_is_not_quoted(
    store: SqliteTokenStore, path: Path, clock: FakeClock
) -> None:
    await add(store, clock, "a")
    with closing(sqlite3.connect(path)) as neighbour:
        neighbour.execute("UPDATE sessions SET body = '[\"canary'")
        neighbour.commit()
    error = await unavailable(store.find(digest_of("a")))
    assert "canary" not in str(error)


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


async def test_a_file_of_the_schema_before_is_upgraded_and_its_lock_out_is_lifted(path: Path, clock: FakeClock) -> None:
    """Nobody is signed out, numbers go on, and a mark that lies years ahead keeps nobody out any more."""
    now = sqlite_log.micros(clock.now())
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


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_was_removed_shuts_the_door(
    store: SqliteTokenStore, path: Path, clock: FakeClock, replaced: bool
) -> None:
    """T5: whoever revokes now does so in another file, and would not be heard."""
    await add(store, clock, "a")
    waiting = asyncio.ensure_future(follow(store, 0))
    await asyncio.sleep(0)
    path.unlink()
    if replaced:
        path.touch()
    await unavailable(waiting)
    await unavailable(store.find(digest_of("a")))
    await unavailable(add(store, clock, "b"))
