"""How sessions, tokens and records lie in a SQLite file, and the statements that change them.

Called by the SQLite token store, always inside its transactions. The revocations and the time are in `sqlite_log`. A
session's user is one compact JSON row; its username and its groups are indexed beside it as they are.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from ostiary.interfaces.token_store import (
    MOST_RECORDS,
    Found,
    Revocation,
    RevocationKind,
    Session,
    TokenKind,
    TokenRecord,
)
from ostiary.model import UserInfo
from ostiary.plugins.sqlite import log
from ostiary.plugins.sqlite.log import micros, moment_of

APPLICATION_ID = 0x6F737469
VERSION = 2
# How long to wait for those who prepare a store in the same folder.
LOCK_SECONDS = 2.0
# How long another process may hold the file before we give up.
WAIT_SECONDS = 5.0
ENDED_AT_A_TIME = 1000

_KINDS = {TokenKind.ACCESS: 0, TokenKind.RENEWAL: 1, TokenKind.SPENT: 2, TokenKind.BROWSER: 3}
_KIND_OF = {number: kind for kind, number in _KINDS.items()}
_SPENT, _ACCESS = _KINDS[TokenKind.SPENT], _KINDS[TokenKind.ACCESS]
_FOUND_COLUMNS = 9

_TABLES = (
    """CREATE TABLE sessions (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, username TEXT NOT NULL,
        created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, body TEXT NOT NULL, sequence INTEGER NOT NULL)""",
    "CREATE INDEX sessions_of_user ON sessions (username)",
    "CREATE INDEX sessions_by_creation ON sessions (created_at)",
    "CREATE INDEX sessions_by_expiry ON sessions (expires_at)",
    # A table of its own, and not a list in a column: a group's name may hold any separator.
    "CREATE TABLE session_groups (name TEXT, session INTEGER, PRIMARY KEY (name, session)) WITHOUT ROWID",
    """CREATE TABLE tokens (
        digest BLOB PRIMARY KEY, session INTEGER NOT NULL, kind INTEGER NOT NULL,
        issued_at INTEGER NOT NULL, expires_at INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX tokens_of_session ON tokens (session)",
    "CREATE INDEX tokens_by_expiry ON tokens (expires_at)",
    *log.TABLES,
    # Numbers are never used again here either: the latest so many are found without counting.
    """CREATE TABLE records (
        number INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, expires_at INTEGER NOT NULL,
        data BLOB NOT NULL)""",
    "CREATE INDEX records_by_expiry ON records (expires_at)",
)

_SESSION_COLUMNS = "s.id, s.username, s.created_at, s.expires_at, s.body, s.sequence"
# Expired ones too, with the latest time that anybody has seen: `is_alive` says whether they are good.
FIND = f"""SELECT t.kind, t.issued_at, t.expires_at, {_SESSION_COLUMNS}, c.latest, c.steps
    FROM tokens t JOIN sessions s ON s.number = t.session JOIN state c
    WHERE t.digest = ?"""  # noqa: S608
SESSION = f"SELECT {_SESSION_COLUMNS} FROM sessions s WHERE s.id = ? AND s.expires_at > {log.NOW}"  # noqa: S608
COUNT = "SELECT count(*) FROM tokens"
RECORD = "SELECT data FROM records WHERE digest = ? AND expires_at > ?"


# --- the file ---


class NotOurs(Exception):
    """The file is not a token store that this version can use."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Nobody else prepares a store in this folder meanwhile: SQLite puts nobody in order who creates a file."""
    folder = None
    # A folder that we may not read, a file system that knows no such lock, somebody who never lets go: then without.
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
    """Make sure of the file, readable for its owner only. SQLite gives its other files the same mode."""
    # One that exists is not opened: closing it would end the locks that SQLite holds on it for this process.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    # Whoever can write here can write themselves a session. A mounted volume's group is the operator's choice.
    if os.stat(path).st_mode & stat.S_IWOTH:
        raise NotOurs("every user of this machine can write to the file", f"chmod 600 {path}")


def connect(path: str, *, wait_seconds: float = WAIT_SECONDS) -> sqlite3.Connection:
    # Transactions are begun and ended by us, and a connection is used by one thread at a time, if not always the same.
    connection = sqlite3.connect(path, timeout=wait_seconds, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    # In KiB: enough for the upper levels of a large file, and all the memory that a store of any size takes.
    connection.execute("PRAGMA cache_size = -16384")
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables if the file is empty; raises `NotOurs` if it is something else."""
    _check_version(connection)
    _use_wal(connection)
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Once more, now that nobody else can be creating them too.
        version = _check_version(connection)
        if version == 0:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        elif version == 1:
            _upgrade_from_1(connection)
        if version != VERSION:
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _upgrade_from_1(connection: sqlite3.Connection) -> None:
    """Sessions get their place among the revocations: after all that there are. Those have done their work."""
    head = log.last_revocation(connection)
    connection.execute("ALTER TABLE sessions ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0")
    connection.execute("UPDATE sessions SET sequence = ?", (head,))
    connection.execute("DROP TABLE revocations")
    for statement in log.TABLES:
        connection.execute(statement)
    # Numbers go on where they were; a sign-in that began before cannot know what the forgotten ones said.
    log.start_sequence(connection, head)
    connection.execute("UPDATE state SET forgotten = ?", (head,))


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
            # Two processes that make this change at once are not put in order by SQLite's own waiting.
            if not is_busy(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.005)


def is_busy(error: sqlite3.Error) -> bool:
    # The upper bits tell more, such as that the file is being recovered. What Python itself finds wrong has no code.
    code = getattr(error, "sqlite_errorcode", 0)
    return bool(code & 0xFF == sqlite3.SQLITE_BUSY)


# --- rows to values ---


def found(digest: bytes, row: Sequence[Any]) -> Found:
    kind, issued_at, expires_at, *rest = row[:_FOUND_COLUMNS]
    belongs_to = session(rest)
    token = TokenRecord(digest, belongs_to.id, moment_of(issued_at), moment_of(expires_at), _KIND_OF[kind])
    return Found(token, belongs_to)


def seen_in(row: Sequence[Any]) -> tuple[int, int]:
    """The latest time that was seen, and how often the clock was set back."""
    return row[-2], row[-1]


def is_alive(row: Sequence[Any], now: int) -> bool:
    """Whether what `FIND` has found has not expired: neither the token nor its session."""
    return bool(row[2] > now and row[6] > now)


def session(row: Sequence[Any]) -> Session:
    session_id, username, created_at, expires_at, body, sequence = row
    # What is sealed came later: sessions of an earlier version have none.
    uid, groups, extra, provider, sources, client, *sealed = json.loads(body)
    return Session(
        id=session_id,
        user=UserInfo(username, uid, tuple(groups), tuple([(key, tuple(values)) for key, values in extra])),
        provider=provider,
        created_at=moment_of(created_at),
        expires_at=moment_of(expires_at),
        sources=tuple([(group, source) for group, source in sources]),
        client=client,
        sequence=sequence,
        sealed=sealed[0] if sealed else "",
    )


def _body(of: Session) -> str:
    user = of.user
    parts = [user.uid, user.groups, user.extra, of.provider, of.sources, of.client, of.sealed]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def _groups_in(body: str) -> list[str]:
    groups: list[str] = json.loads(body)[1]
    return groups


# --- reading ---


def select_sessions(
    username: str | None, group: str | None, *, now: datetime, limit: int
) -> tuple[str, tuple[Any, ...]]:
    where, arguments = [f"s.expires_at > {log.NOW}"], [micros(now)]  # type: tuple[list[str], list[Any]]
    if username is not None:
        where.append("s.username = ?")
        arguments.append(username)
    if group is not None:
        where.append("s.number IN (SELECT session FROM session_groups WHERE name = ?)")
        arguments.append(group)
    query = f"SELECT {_SESSION_COLUMNS} FROM sessions s WHERE {' AND '.join(where)} ORDER BY s.created_at DESC LIMIT ?"  # noqa: S608
    return query, (*arguments, limit)


# --- writing ---


def add(
    db: sqlite3.Connection, added: Session, tokens: Sequence[TokenRecord], *, now: datetime, seen: log.Seen
) -> bool:
    """False, and nothing is stored, if a revocation covers the session."""
    correct_times(db, now, seen)
    since = log.last_before(db, added.created_at) if added.sequence is None else added.sequence
    if log.covers(db, added, since=since):
        return False
    _insert_tokens(db, _put_session(db, added, since), tokens)
    log.advance_time(db, now)
    return True


def renew(
    db: sqlite3.Connection,
    spent: bytes,
    renewed: Session,
    tokens: Sequence[TokenRecord],
    *,
    at: datetime,
    now: datetime,
    seen: log.Seen,
    since: int | None,
) -> bool:
    correct_times(db, now, seen)
    time_now = log.advance_time(db, now)
    before = _find(db, spent, time_now)
    if before is None or before.token.kind is not TokenKind.RENEWAL or before.session.id != renewed.id:
        return False
    if log.covers(db, renewed, since=log.last_before(db, at) if since is None else since):
        return False
    number = _put_session(db, renewed, before.session.sequence or 0)
    if before.session.user != renewed.user:
        _end_access_tokens(db, number, now=time_now)
    db.execute("UPDATE tokens SET kind = ?, issued_at = ? WHERE digest = ?", (_SPENT, micros(at), spent))
    _insert_tokens(db, number, tokens)
    return True


def revoke(db: sqlite3.Connection, revoked: Revocation, *, now: datetime) -> int:
    time_now = log.advance_time(db, now)
    if revoked.kind is RevocationKind.TOKEN:
        ended = _end_token(db, bytes.fromhex(revoked.value), time_now)
    else:
        ended = _end_sessions(db, *_concerned(revoked), now=time_now)
    log.record(db, revoked, time_now)
    return ended


def heartbeat(db: sqlite3.Connection, *, now: datetime, seen: log.Seen) -> None:
    correct_times(db, now, seen)
    log.advance_time(db, now)


def correct_times(db: sqlite3.Connection, now: datetime, seen: log.Seen) -> None:
    """If the clock was set back: end what has expired for good, and set everything else back by as much."""
    step = log.step_back(db, now, seen)
    if step:
        expired = micros(now) + step
        while _sweep_portion(db, expired, ENDED_AT_A_TIME)[1]:
            pass
        log.set_times_back(db, step, now)


def sweep(db: sqlite3.Connection, *, now: datetime, limit: int) -> tuple[int, bool]:
    """Delete some of what has expired; how many tokens that were, and whether there may be more."""
    at = log.advance_time(db, now)
    swept, more = _sweep_portion(db, at, limit)
    if not more:
        log.forget(db, at)
        # There are never so many of these that they would need portions.
        db.execute("DELETE FROM records WHERE expires_at <= ?", (at,))
    return swept, more


def _sweep_portion(db: sqlite3.Connection, at: int, limit: int) -> tuple[int, bool]:
    expired = db.execute(
        "DELETE FROM tokens WHERE digest IN (SELECT digest FROM tokens WHERE expires_at <= ? LIMIT ?)", (at, limit)
    ).rowcount
    rows = db.execute("SELECT number, body FROM sessions WHERE expires_at <= ? LIMIT ?", (at, limit)).fetchall()
    swept = expired + _delete_sessions(db, rows)
    return swept, expired == limit or len(rows) == limit


def put_record(db: sqlite3.Connection, digest: bytes, data: bytes, *, expires_at: datetime, now: datetime) -> bool:
    db.execute("DELETE FROM records WHERE digest = ? AND expires_at <= ?", (digest, micros(now)))
    inserted = db.execute(
        "INSERT OR IGNORE INTO records (digest, expires_at, data) VALUES (?, ?, ?)", (digest, micros(expires_at), data)
    )
    if not inserted.rowcount:
        return False
    assert inserted.lastrowid is not None, "a row was inserted"
    db.execute("DELETE FROM records WHERE number <= ?", (inserted.lastrowid - MOST_RECORDS,))
    return True


def take_record(db: sqlite3.Connection, digest: bytes, *, now: datetime) -> bytes | None:
    row = db.execute(RECORD, (digest, micros(now))).fetchone()
    if row is None:
        return None
    db.execute("DELETE FROM records WHERE digest = ?", (digest,))
    return bytes(row[0])


def _put_session(db: sqlite3.Connection, put: Session, sequence: int) -> int:
    body, created_at, expires_at = _body(put), micros(put.created_at), micros(put.expires_at)
    old = db.execute("SELECT number, body FROM sessions WHERE id = ?", (put.id,)).fetchone()
    if old is None:
        row = (put.id, put.user.username, created_at, expires_at, body, sequence)
        columns = "id, username, created_at, expires_at, body, sequence"
        inserted = db.execute(f"INSERT INTO sessions ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row)  # noqa: S608
        number = inserted.lastrowid
        assert number is not None, "a row was inserted"
    else:
        number = int(old[0])
        db.execute(
            "UPDATE sessions SET username = ?, created_at = ?, expires_at = ?, body = ? WHERE number = ?",
            (put.user.username, created_at, expires_at, body, number),
        )
        _delete_groups(db, [old])
    groups = [(group, number) for group in put.user.groups]
    db.executemany("INSERT OR IGNORE INTO session_groups (name, session) VALUES (?, ?)", groups)
    return number


def _insert_tokens(db: sqlite3.Connection, number: int, tokens: Sequence[TokenRecord]) -> None:
    rows = [
        (token.digest, number, _KINDS[token.kind], micros(token.issued_at), micros(token.expires_at))
        for token in tokens
    ]
    db.executemany("INSERT INTO tokens (digest, session, kind, issued_at, expires_at) VALUES (?, ?, ?, ?, ?)", rows)


def _concerned(revoked: Revocation) -> tuple[str, tuple[Any, ...]]:
    """The condition that a session must meet for *revoked* to end it: `ostiary.core.tokens.ends`, in SQL.

    Every session that is there began before the number that *revoked* is about to get.
    """
    if revoked.kind is RevocationKind.SESSION:
        return "id = ?", (revoked.value,)
    condition, arguments = "1", []  # type: tuple[str, list[Any]]
    if revoked.kind is RevocationKind.USER:
        condition, arguments = "username = ?", [revoked.value]
    elif revoked.kind is RevocationKind.GROUP:
        condition, arguments = "number IN (SELECT session FROM session_groups WHERE name = ?)", [revoked.value]
    if revoked.at is not None:
        condition += " AND created_at <= ?"
        arguments.append(micros(revoked.at))
    return condition, tuple(arguments)


def _find(db: sqlite3.Connection, digest: bytes, now: int) -> Found | None:
    row = db.execute(FIND, (digest,)).fetchone()
    return found(digest, row) if row is not None and is_alive(row, now) else None


def _end_sessions(db: sqlite3.Connection, condition: str, arguments: tuple[Any, ...], *, now: int) -> int:
    living = 0
    query = f"SELECT number, body, expires_at FROM sessions WHERE {condition} LIMIT {ENDED_AT_A_TIME}"  # noqa: S608
    # In portions, but in one transaction: a million sessions need not fit into memory.
    while rows := db.execute(query, arguments).fetchall():
        living += sum(expires_at > now for _, _, expires_at in rows)
        _delete_sessions(db, rows)
    return living


def _delete_sessions(db: sqlite3.Connection, rows: Sequence[Any]) -> int:
    """Delete sessions, given as (number, body, ...), with all that hangs on them; how many tokens that were."""
    if not rows:
        return 0
    numbers = [(row[0],) for row in rows]
    _delete_groups(db, rows)
    tokens = db.executemany("DELETE FROM tokens WHERE session = ?", numbers).rowcount
    db.executemany("DELETE FROM sessions WHERE number = ?", numbers)
    return tokens


def _delete_groups(db: sqlite3.Connection, rows: Sequence[Any]) -> None:
    pairs = [(group, row[0]) for row in rows for group in _groups_in(row[1])]
    db.executemany("DELETE FROM session_groups WHERE name = ? AND session = ?", pairs)


def _end_token(db: sqlite3.Connection, digest: bytes, now: int) -> int:
    token = _find(db, digest, now)
    # A spent one stays, so that its second use is noticed.
    if token is None or token.token.kind is TokenKind.SPENT:
        return 0
    return db.execute("DELETE FROM tokens WHERE digest = ?", (digest,)).rowcount


def _end_access_tokens(db: sqlite3.Connection, number: int, *, now: int) -> None:
    rows = db.execute("SELECT digest FROM tokens WHERE session = ? AND kind = ?", (number, _ACCESS)).fetchall()
    for (digest,) in rows:
        db.execute("DELETE FROM tokens WHERE digest = ?", (digest,))
        ended = Revocation(RevocationKind.TOKEN, digest.hex(), by="ostiary: the user has changed")
        log.record(db, ended, now)
