"""The SQLite file of a token store: its schema and queries, and how it is created, checked and upgraded."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from ostiary_gateway.interfaces import store_capabilities
from ostiary_gateway.interfaces.store_capabilities import ListedSession, StoredObject
from ostiary_gateway.interfaces.token_store import Found, Session, SessionKind, TokenKind
from ostiary_gateway.stores import stored_session
from ostiary_gateway.stores.sqlite import log
from ostiary_gateway.stores.sqlite.log import Row
from ostiary_gateway.stores.stored_session import KINDS, NARROWED, SESSION_KINDS, micros, moment_of, place_text

# Schema and queries. `ostiary_gateway.stores.stored_session` encodes a session's columns; its username and groups are
# indexed unencoded.

SPENT = KINDS[TokenKind.SPENT]
ACCESS = (KINDS[TokenKind.ACCESS], NARROWED)
_SESSION_COLUMNS = 8
# For a group with more sessions than this, scan the newest sessions of all instead of sorting all of the group's, which
# takes longer. If too few are found among `MOST_LOOKED_AT`, the group's sessions are sorted after all.
LARGE_GROUP = 4_000
MOST_LOOKED_AT = 100_000

TABLES = (
    """CREATE TABLE sessions (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, username TEXT NOT NULL,
        created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, body TEXT NOT NULL, sequence INTEGER NOT NULL)""",
    "CREATE INDEX sessions_of_user ON sessions (username)",
    "CREATE INDEX sessions_by_creation ON sessions (created_at)",
    "CREATE INDEX sessions_by_expiry ON sessions (expires_at)",
    # A table, not a list in a column: a group's name may contain any separator.
    "CREATE TABLE session_groups (name TEXT, session INTEGER, PRIMARY KEY (name, session)) WITHOUT ROWID",
    """CREATE TABLE tokens (
        digest BLOB PRIMARY KEY, session INTEGER NOT NULL, kind INTEGER NOT NULL,
        issued_at INTEGER NOT NULL, expires_at INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX tokens_of_session ON tokens (session)",
    "CREATE INDEX tokens_by_expiry ON tokens (expires_at)",
    *log.TABLES,
    # Numbers are never reused here either: the latest records are found without counting.
    """CREATE TABLE records (
        number INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, expires_at INTEGER NOT NULL,
        data BLOB NOT NULL)""",
    "CREATE INDEX records_by_expiry ON records (expires_at)",
)
# Columns that were added later, to files of earlier versions too. Each has a default, so that a process of an earlier
# version that has the file open can go on using it.
ADDED_COLUMNS = {
    "sessions": {"kind": "INTEGER NOT NULL DEFAULT 0", "used_at": "INTEGER"},
    "tokens": {"delegation": "TEXT NOT NULL DEFAULT ''"},
    "revocations": {"owner": "TEXT NOT NULL DEFAULT ''"},
}
# Indexes that were added later, likewise: SQLite updates them for every version.
ADDED_INDEXES = {"sessions_by_kind": "sessions (kind, created_at)"}

SESSION_COLUMNS = "s.id, s.username, s.created_at, s.expires_at, s.body, s.sequence, s.kind, s.used_at"
# Includes expired ones, with the latest time seen by any process: `is_alive` checks them.
FIND = f"""SELECT {SESSION_COLUMNS}, t.kind, t.issued_at, t.expires_at, t.delegation, c.latest, c.steps
    FROM tokens t JOIN sessions s ON s.number = t.session JOIN state c
    WHERE t.digest = ?"""  # noqa: S608
SESSION = f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE s.id = ? AND s.expires_at > {log.NOW}"  # noqa: S608
COUNT = "SELECT count(*) FROM tokens"
# The plus disables the index of the kinds: that of the users leads to a few sessions.
COUNT_SESSIONS = f"SELECT count(*) FROM sessions s WHERE s.username = ? AND +s.kind = ? AND s.expires_at > {log.NOW}"  # noqa: S608
RECORD = "SELECT data FROM records WHERE digest = ? AND expires_at > ?"


# Decoding rows.


def decode_token(digest: bytes, row: Row) -> Found:
    """Decode a row of `FIND`."""
    session = stored_session.decode_session(*row[:_SESSION_COLUMNS])
    return Found(stored_session.decode_token(digest, session.id, *row[_SESSION_COLUMNS:-2]), session)


def clock_of(row: Row) -> tuple[int, int]:
    """Return the latest time that was seen, and how often the clock was set back."""
    return row[-2], row[-1]


def is_alive(row: Row, now: int) -> bool:
    """Whether neither the token nor the session of a row of `FIND` has expired."""
    return bool(row[3] > now and row[10] > now)


def decode_session(row: Row) -> Session:
    return stored_session.decode_session(*row[:_SESSION_COLUMNS])


def decode_listed_session(row: Row) -> ListedSession:
    """Decode a row of `select_sessions`."""
    return ListedSession(decode_session(row), place_text(row[2], row[_SESSION_COLUMNS]))


# Reading.


def list_sessions(
    db: sqlite3.Connection,
    username: str | None,
    group: str | None,
    kind: SessionKind | None,
    *,
    now: datetime,
    limit: int,
    after: tuple[int, int] | None = None,
) -> list[Row]:
    """Return rows for `decode_listed_session`, the newest first. The cost is independent of the size of the file."""
    if group is not None and username is None and _is_large(db, group):
        query, arguments = select_newest_of_group(group, kind, now=now, limit=limit, after=after)
        rows = db.execute(query, arguments).fetchall()
        if len(rows) == limit:
            return rows
    query, arguments = select_sessions(username, group, kind, now=now, limit=limit, after=after)
    return db.execute(query, arguments).fetchall()


def _is_large(db: sqlite3.Connection, group: str) -> bool:
    query = "SELECT count(*) FROM (SELECT 1 FROM session_groups WHERE name = ? LIMIT ?)"
    return bool(db.execute(query, (group, LARGE_GROUP + 1)).fetchone()[0] > LARGE_GROUP)


def select_newest_of_group(
    group: str, kind: SessionKind | None, *, now: datetime, limit: int, after: tuple[int, int] | None = None
) -> tuple[str, tuple[str | int, ...]]:
    """Select those of the group among the `MOST_LOOKED_AT` newest of all, scanned until there are enough."""
    newest, arguments = select_sessions(None, None, None, now=now, limit=MOST_LOOKED_AT, after=after)
    query = f"""SELECT * FROM ({newest}) s
        WHERE EXISTS (SELECT 1 FROM session_groups g WHERE g.name = ? AND g.session = s.number)"""  # noqa: S608
    arguments += (group,)
    if kind is not None:
        query += " AND s.kind = ?"
        arguments += (SESSION_KINDS[kind],)
    return f"{query} LIMIT ?", (*arguments, limit)


def select_sessions(
    username: str | None,
    group: str | None,
    kind: SessionKind | None,
    *,
    now: datetime,
    limit: int,
    after: tuple[int, int] | None = None,
) -> tuple[str, tuple[str | int, ...]]:
    """Return the query and its arguments. *after* is the creation time and number of the last one before."""
    where = [f"s.expires_at > {log.NOW}"]
    arguments: list[str | int] = [micros(now)]
    if username is not None:
        where.append("s.username = ?")
        arguments.append(username)
    if group is not None:
        where.append("s.number IN (SELECT session FROM session_groups WHERE name = ?)")
        arguments.append(group)
    if kind is not None:
        # The plus disables the index of the kinds: that of the users, or the group's, leads to fewer sessions.
        where.append("s.kind = ?" if username is None and group is None else "+s.kind = ?")
        arguments.append(SESSION_KINDS[kind])
    if after is not None:
        where.append("(s.created_at, s.number) < (?, ?)")
        arguments += after
    query = f"""SELECT {SESSION_COLUMNS}, s.number FROM sessions s WHERE {" AND ".join(where)}
        ORDER BY s.created_at DESC, s.number DESC LIMIT ?"""  # noqa: S608
    return query, (*arguments, limit)


# Objects.

# AUTOINCREMENT: a version is never reused. A change writes another row, so each gets the next one.
TABLE = """CREATE TABLE IF NOT EXISTS objects (
    version INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, name TEXT NOT NULL, changed_at INTEGER NOT NULL,
    data BLOB NOT NULL, UNIQUE (kind, name))"""
_COLUMNS = "kind, name, data, version, changed_at"
FIND_ITEM = f"SELECT {_COLUMNS} FROM objects WHERE kind = ? AND name = ?"  # noqa: S608
LIST = f"SELECT {_COLUMNS} FROM objects WHERE kind = ? AND name > ? ORDER BY name LIMIT ?"  # noqa: S608
COUNT_WITH_PREFIX = "SELECT count(*) FROM objects WHERE kind = ? AND name >= ? AND name < ?"
COUNT_FROM = "SELECT count(*) FROM objects WHERE kind = ? AND name >= ?"
ITEM_KINDS = "SELECT DISTINCT kind FROM objects ORDER BY kind"
_VERSION = "SELECT version FROM objects WHERE kind = ? AND name = ?"
_COUNT = "SELECT count(*) FROM objects WHERE kind = ?"

# Returned by `put` if the kind is full.
FULL = -1


def put(db: sqlite3.Connection, kind: str, name: str, data: bytes, *, version: int | None, now: datetime) -> int | None:
    """Return the new version; None if the current one is not *version*, and `FULL` if there is no room."""
    row = db.execute(_VERSION, (kind, name)).fetchone()
    if version is not None and version != (row[0] if row else 0):
        return None
    if row is None and db.execute(_COUNT, (kind,)).fetchone()[0] >= store_capabilities.MOST_OBJECTS:
        return FULL
    if row is not None:
        db.execute("DELETE FROM objects WHERE version = ?", (row[0],))
    time = log.advance_time(db, now)
    values = (kind, name, time, data)
    inserted = db.execute("INSERT INTO objects (kind, name, changed_at, data) VALUES (?, ?, ?, ?)", values)
    return inserted.lastrowid


def delete(db: sqlite3.Connection, kind: str, name: str, *, version: int | None) -> bool:
    row = db.execute(_VERSION, (kind, name)).fetchone()
    if row is None or version not in (None, row[0]):
        return False
    db.execute("DELETE FROM objects WHERE version = ?", (row[0],))
    return True


def decode(row: Row) -> StoredObject:
    kind, name, data, version, changed_at = row
    return StoredObject(kind, name, bytes(data), version, moment_of(changed_at))


APPLICATION_ID = 0x6F737469
VERSION = 2
# Timeout for other processes that prepare a store in the same folder.
LOCK_SECONDS = 2.0
# Timeout for other processes that hold the file.
WAIT_SECONDS = 5.0


class NotOurs(Exception):
    """The file is not a token store that this version can use."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Lock the folder of the file: SQLite does not serialize processes that create a file."""
    folder = None
    # Go on without the lock if the folder is unreadable, the file system has no locks, or another process holds it.
    with suppress(OSError):
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _lock(folder)
    try:
        yield
    finally:
        if folder is not None:
            os.close(folder)


def _lock(descriptor: int) -> None:
    give_up_at = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.005)


def create_file(path: str) -> None:
    """Create the file if it does not exist, readable for its owner only. SQLite gives its other files the same mode."""
    # An existing file is not opened: closing it would release the locks that SQLite holds on it for this process.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    # Anyone who can write to it can create sessions for themselves. A mounted volume's group is the operator's choice.
    if os.stat(path).st_mode & stat.S_IWOTH:
        raise NotOurs("every user of this machine can write to the file", f"chmod 600 {path}")


def connect(path: str, *, wait_seconds: float = WAIT_SECONDS) -> sqlite3.Connection:
    # Explicit transactions; a connection is used by one thread at a time, but not always the same.
    connection = sqlite3.connect(path, timeout=wait_seconds, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    # In KiB: enough for the upper levels of a large file, and the maximum memory that a store of any size uses.
    connection.execute("PRAGMA cache_size = -16384")
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables if the file is empty; raises `NotOurs` if it is something else."""
    _check_version(connection)
    _use_wal(connection)
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Checked again inside the transaction: another process may have created the tables meanwhile.
        version = _check_version(connection)
        if version == 0:
            for statement in TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        elif version == 1:
            _upgrade_from_1(connection)
        _add_what_came_later(connection)
        if version != VERSION:
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _upgrade_from_1(connection: sqlite3.Connection) -> None:
    """Place all sessions after all existing revocations, which have taken effect already."""
    head = log.last_revocation(connection)
    connection.execute("ALTER TABLE sessions ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0")
    connection.execute("UPDATE sessions SET sequence = ?", (head,))
    connection.execute("DROP TABLE revocations")
    for statement in log.TABLES:
        connection.execute(statement)
    # Numbers continue; a sign-in that began before the upgrade cannot check the deleted revocations.
    log.start_sequence(connection, head)
    connection.execute("UPDATE state SET forgotten = ?", (head,))


def _add_what_came_later(connection: sqlite3.Connection) -> None:
    """Add later columns and indexes. The version does not change: earlier versions can still use the file."""
    connection.execute(TABLE)
    for table, columns in ADDED_COLUMNS.items():
        present = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for name, declaration in columns.items():
            if name not in present:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {declaration}")
    for name, columns_of_table in ADDED_INDEXES.items():
        connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {columns_of_table}")


def _check_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (objects or application):
        raise NotOurs("the file belongs to another program", "name another file in store.path")
    if not 0 <= version <= VERSION:
        hint = "use the version of ostiary that wrote it, or name another file in store.path"
        raise NotOurs(f"the file has the schema version {version}, and this ostiary knows up to {VERSION}", hint)
    return int(version)


def _use_wal(connection: sqlite3.Connection) -> None:
    give_up_at = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite's busy timeout does not apply when two processes make this change concurrently.
            if not is_busy(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.005)


def is_busy(error: sqlite3.Error) -> bool:
    # The upper bits are an extended code, such as for recovery. Errors of the Python module itself have no code.
    code = getattr(error, "sqlite_errorcode", 0)
    return bool(code & 0xFF == sqlite3.SQLITE_BUSY)
