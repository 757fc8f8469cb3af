"""Export, import and checks of a SQLite token store."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from ostiary_gateway.interfaces.store_capabilities import StoredLog, StoredSession, StoreReport
from ostiary_gateway.interfaces.token_store import TokenRecord
from ostiary_gateway.stores.sqlite import database_file, log
from ostiary_gateway.stores.sqlite import transactions as changes
from ostiary_gateway.stores.sqlite.database_file import SESSION_COLUMNS, decode_session
from ostiary_gateway.stores.sqlite.log import Row
from ostiary_gateway.stores.stored_session import decode_token, micros

# Sessions per query for tokens: fewer parameters than any SQLite allows.
SESSIONS_AT_ONCE = 500


# Export.


def select_log(db: sqlite3.Connection) -> tuple[int, int, list[Row]]:
    (forgotten,) = db.execute("SELECT forgotten FROM state").fetchone()
    return log.last_revocation(db), forgotten, db.execute(log.ALL).fetchall()


def decode_log(head: int, forgotten: int, rows: Sequence[Row]) -> StoredLog:
    undone = frozenset(row[0] for row in rows if row[-1])
    return StoredLog(head, forgotten, tuple(log.decode_revocation(row[:-1]) for row in rows), undone)


def select_sessions(db: sqlite3.Connection, after: str, limit: int, *, now: datetime) -> tuple[list[Row], list[Row]]:
    """Return sessions, and the tokens of all of them, each preceded by the number of its session."""
    living = f"expires_at > {log.NOW}"
    query = f"""SELECT s.number, {SESSION_COLUMNS} FROM sessions s
        WHERE s.id > ? AND s.{living} ORDER BY s.id LIMIT ?"""  # noqa: S608
    sessions = db.execute(query, (after, micros(now), limit)).fetchall()
    tokens: list[Row] = []
    for start in range(0, len(sessions), SESSIONS_AT_ONCE):
        numbers = [row[0] for row in sessions[start : start + SESSIONS_AT_ONCE]]
        places = ", ".join("?" * len(numbers))
        query = f"""SELECT session, digest, kind, issued_at, expires_at, delegation FROM tokens
            WHERE session IN ({places}) AND {living} ORDER BY digest"""  # noqa: S608
        tokens += db.execute(query, (*numbers, micros(now))).fetchall()
    return sessions, tokens


def decode_sessions(sessions: Sequence[Row], tokens: Sequence[Row]) -> list[StoredSession]:
    records: dict[int, list[TokenRecord]] = {row[0]: [] for row in sessions}
    names = {row[0]: row[1] for row in sessions}
    for number, digest, *rest in tokens:
        records[number].append(decode_token(digest, names[number], *rest))
    return [StoredSession(decode_session(row[1:]), tuple(records[row[0]])) for row in sessions]


# Import.


def put_log(db: sqlite3.Connection, new: StoredLog) -> int | None:
    """Replace the log; return the store's own last number, without a change, if that is larger."""
    head = log.last_revocation(db)
    if head > new.head:
        return head
    db.execute("DELETE FROM revocations")
    for revocation in new.revocations:
        log.put(db, revocation, undone=revocation.sequence in new.undone)
    # After the rows: each of them has increased the sequence.
    log.start_sequence(db, new.head)
    db.execute("UPDATE state SET forgotten = ?", (new.forgotten,))
    return None


def put_sessions(db: sqlite3.Connection, new: Sequence[StoredSession], *, now: datetime, seen: log.Seen) -> None:
    changes.correct_times(db, now, seen)
    for stored in new:
        changes.replace_session(db, stored.session, stored.tokens)
    log.advance_time(db, now)


# Checks, for ``ostiary-gateway store check`` and ``store migrate``.

MOST_PROBLEMS = 10
# Where each process that has a file in WAL mode open holds a read lock: UNIX_SHM_DMS in SQLite's os_unix.c.
_IN_USE_BYTE = 128
# `struct flock` of Linux on 64 bits: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi4x")

_LOST = {
    "tokens have no session": "SELECT count(*) FROM tokens WHERE session NOT IN (SELECT number FROM sessions)",
    "groups have no session": "SELECT count(*) FROM session_groups WHERE session NOT IN (SELECT number FROM sessions)",
    "revocations have numbers that are not given out yet": (
        "SELECT count(*) FROM revocations WHERE sequence > (SELECT seq FROM sqlite_sequence WHERE name = 'revocations')"
    ),
}


def examine(db: sqlite3.Connection, path: str) -> StoreReport:
    checks = [row[0] for row in db.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})")]
    problems = [] if checks == ["ok"] else [f"the file is damaged: {text}" for text in checks]
    if not problems:
        for what, query in _LOST.items():
            (count,) = db.execute(query).fetchone()
            if count:
                problems.append(f"{count} {what}")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    facts = (
        ("schema", f"version {version} of {database_file.VERSION}"),
        ("file", f"{path}, {_size(path)} bytes, mode {os.stat(path).st_mode & 0o777:o}"),
        ("engine", f"SQLite {sqlite3.sqlite_version}"),
    )
    return StoreReport(facts, tuple(problems))


def _size(path: str) -> int:
    return sum(file.stat().st_size for file in (Path(path), Path(f"{path}-wal")) if file.exists())


class OtherProcesses:
    """Detects other processes that have the file open. Close it after every connection of this process."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}-shm"
        self._descriptor: int | None = None

    def describe(self) -> tuple[str, ...]:
        """Describe one other process, if there are any: the system reports only one."""
        if sys.platform != "linux" or struct.calcsize("P") != 8:
            return ()
        if self._descriptor is None:
            # Stays open: closing it would release the locks that SQLite holds on it for this process.
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _IN_USE_BYTE, 1, 0)
        kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, question))
        if kind == fcntl.F_UNLCK:
            return ()
        return (_process_name(pid),)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _process_name(pid: int) -> str:
    # A process of another container has no number here.
    if pid <= 0:
        return "a process outside of this container"
    # Only the name: arguments may contain secrets.
    with suppress(OSError):
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    return f"process {pid}"
