"""The revocation log in a SQLite file, and the handling of a clock that is set back.

Every revocation gets the next number of one sequence, and a session stores the number of the last one before it, so
"before" needs no clock. Expiry is decided by the latest time that was ever seen; when the clock is set back, all times
in the file are set back with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from ostiary_gateway.interfaces.token_store import Revocation, RevocationBatch, RevocationKind, Session
from ostiary_gateway.sessions import CLOCK_TOLERANCE
from ostiary_gateway.stores.stored_session import MICROSECOND, decode_kind, encode_kind, index_names, micros, moment_of

# A row as sqlite3 returns it; its columns are those of the statement.
Row: TypeAlias = Sequence[Any]

# Retention of revocations: they also end a session that is just about to begin.
REMEMBERED = timedelta(hours=1)
# Maximum number read together; a reader that is further behind drops its cache.
MOST_FOLLOWED = 10_000
HEAD = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'revocations'), 0)"
NOW = "max(?, (SELECT latest FROM state))"
TABLES = (
    # AUTOINCREMENT: a number is never reused, so a gap shows a reader that it missed something.
    """CREATE TABLE revocations (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, value TEXT NOT NULL, at INTEGER,
        author TEXT NOT NULL, recorded_at INTEGER NOT NULL, keep_until INTEGER NOT NULL,
        undone INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX revocations_by_value ON revocations (kind, value, sequence)",
    "CREATE INDEX revocations_by_time ON revocations (recorded_at)",
    # One row. `latest` is the latest time that was seen, `steps` counts how often the clock was set back, and
    # revocations up to the number `forgotten` were deleted.
    """CREATE TABLE state (
        id INTEGER PRIMARY KEY CHECK (id = 1), latest INTEGER NOT NULL, steps INTEGER NOT NULL,
        forgotten INTEGER NOT NULL)""",
    "INSERT INTO state (id, latest, steps, forgotten) VALUES (1, 0, 0, 0)",
)
_COLUMNS = "sequence, kind, value, at, author, recorded_at, owner"
# The head is in every row, and in an additional first row: one statement is one consistent read.
AFTER = f"""SELECT ({HEAD}), {_COLUMNS} FROM revocations WHERE sequence > ?
    UNION ALL SELECT ({HEAD}), NULL, NULL, NULL, NULL, NULL, NULL, NULL ORDER BY 2
    LIMIT {MOST_FOLLOWED + 1}"""  # noqa: S608
ALL = f"SELECT {_COLUMNS}, undone FROM revocations ORDER BY sequence"  # noqa: S608
MARKS = f"SELECT {_COLUMNS} FROM revocations WHERE NOT undone ORDER BY sequence DESC"  # noqa: S608

_REMEMBERED = REMEMBERED // MICROSECOND
_EARLIEST = micros(datetime.min.replace(tzinfo=UTC))
_TIMES = {
    "sessions": ("created_at", "expires_at", "used_at"),
    "tokens": ("issued_at", "expires_at"),
    "revocations": ("at", "recorded_at", "keep_until"),
    "records": ("expires_at",),
    "objects": ("changed_at",),
}


# Time.


def advance_time(db: sqlite3.Connection, now: datetime) -> int:
    """Record that it is *now*; return the latest time that was ever seen, which may be later."""
    db.execute("UPDATE state SET latest = ? WHERE latest < ?", (micros(now), micros(now)))
    return int(db.execute("SELECT latest FROM state").fetchone()[0])


@dataclass(slots=True)
class Seen:
    """The latest time that this process has seen since the clock was last set back (`steps`)."""

    latest: int = 0
    steps: int = 0

    def at(self, now: datetime, latest: int, steps: int) -> int:
        """Return the time of day; while the clock is behind the latest time seen here or in the file, that time."""
        if steps != self.steps:
            # The times in the file were set back with the clock.
            self.latest, self.steps = 0, steps
        self.latest = max(self.latest, micros(now))
        return max(self.latest, latest)


def step_back(db: sqlite3.Connection, now: datetime, seen: Seen) -> int:
    """Return by how much the clock was set back since the latest time that was seen; zero if it was not."""
    latest, steps = db.execute("SELECT latest, steps FROM state").fetchone()
    step = max(latest, seen.latest if steps == seen.steps else 0) - micros(now)
    return int(step) if step > CLOCK_TOLERANCE // MICROSECOND else 0


def set_times_back(db: sqlite3.Connection, step: int, now: datetime) -> None:
    """Set all times back so that lifetimes are unchanged. Expired rows must have been deleted before."""
    for table, columns in _TIMES.items():
        changes = ", ".join(f"{column} = max({column} - ?, ?)" for column in columns)
        db.execute(f"UPDATE {table} SET {changes}", (step, _EARLIEST) * len(columns))  # noqa: S608
    db.execute("UPDATE state SET latest = ?, steps = steps + 1", (micros(now),))
    # A number without a revocation: readers see the gap and drop their caches.
    start_sequence(db, last_revocation(db) + 1)


# The log.


def start_sequence(db: sqlite3.Connection, head: int) -> None:
    """Give the next revocation the number after *head*."""
    if not db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'revocations'", (head,)).rowcount:
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('revocations', ?)", (head,))


def last_revocation(db: sqlite3.Connection) -> int:
    return int(db.execute(HEAD).fetchone()[0])


def last_before(db: sqlite3.Connection, moment: datetime) -> int:
    """Return the number of the last revocation that was recorded before *moment*."""
    # The plus makes SQLite use the index by time, which leads to the few newer rows, instead of scanning from the
    # oldest.
    query = "SELECT min(+sequence) FROM revocations WHERE recorded_at >= ?"
    (first,) = db.execute(query, (micros(moment),)).fetchone()
    return last_revocation(db) if first is None else int(first) - 1


def record(db: sqlite3.Connection, revoked: Revocation, now: int) -> None:
    at = None if revoked.at is None else micros(revoked.at)
    kind, value = encode_kind(revoked)
    row = (kind.value, value, at, revoked.by, now, now + _REMEMBERED, revoked.owner)
    columns = "kind, value, at, author, recorded_at, keep_until, owner"
    db.execute(f"INSERT INTO revocations ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608


def put(db: sqlite3.Connection, recorded: Revocation, *, undone: bool) -> None:
    """Insert a revocation that another store has recorded, with its number and time."""
    assert recorded.recorded_at is not None, "another store has recorded it"
    at = None if recorded.at is None else micros(recorded.at)
    time = micros(recorded.recorded_at)
    kind, value = encode_kind(recorded)
    what = (recorded.sequence, kind.value, value, at, recorded.by, time, recorded.owner)
    columns = f"{_COLUMNS}, keep_until, undone"
    row = (*what, time + _REMEMBERED, undone)
    db.execute(f"INSERT INTO revocations ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608


def covers(db: sqlite3.Connection, new: Session, *, since: int) -> bool:
    """Whether a revocation with a larger number than *since* covers this session: `sessions.ends`, in SQL."""
    (forgotten,) = db.execute("SELECT forgotten FROM state").fetchone()
    if since < forgotten or _is_kept(db, RevocationKind.SESSION, new.id):
        return True
    # Rarely is there a revocation this new, and otherwise the groups need not be looked up.
    if last_revocation(db) <= since:
        return False
    values = [(RevocationKind.BEFORE, ""), (RevocationKind.USER, new.user.username)]
    values += [(RevocationKind.GROUP, name) for name in index_names(new)]
    created_at = micros(new.created_at)
    return any(_is_kept(db, kind, value, since, created_at) for kind, value in values)


def _is_kept(
    db: sqlite3.Connection, kind: RevocationKind, value: str, since: int = 0, created_at: int = _EARLIEST
) -> bool:
    query = """SELECT 1 FROM revocations WHERE kind = ? AND value = ? AND sequence > ? AND NOT undone
        AND (at IS NULL OR at >= ?) LIMIT 1"""
    return db.execute(query, (kind.value, value, since, created_at)).fetchone() is not None


def undo(db: sqlite3.Connection, sequence: int) -> bool:
    # The row stays: a gap in the numbers would mean a missed revocation.
    changed = db.execute("UPDATE revocations SET undone = 1 WHERE sequence = ? AND NOT undone", (sequence,))
    return changed.rowcount > 0


def forget(db: sqlite3.Connection, now: int) -> None:
    """Delete revocations that can no longer affect a session."""
    # By time, which is indexed and differs from `keep_until` by the same amount in every row.
    old = "SELECT coalesce(max(+sequence), 0) FROM revocations WHERE recorded_at <= ?"
    (last,) = db.execute(old, (now - _REMEMBERED,)).fetchone()
    if last:
        db.execute("UPDATE state SET forgotten = max(forgotten, ?)", (last,))
        db.execute("DELETE FROM revocations WHERE sequence <= ?", (last,))


# Decoding rows.


def decode_revocation(row: Row) -> Revocation:
    sequence, kind, value, at, author, recorded_at, owner = row
    moment = None if at is None else moment_of(at)
    return Revocation(*decode_kind(kind, value), moment, author, sequence, moment_of(recorded_at), owner)


def batch(rows: Iterable[Row], after: int) -> RevocationBatch:
    """Decode the rows of `AFTER`."""
    head, later = after, []
    for head_now, *row in rows:
        head = head_now
        if row[0] is not None:
            later.append(decode_revocation(row))
    # Numbers have no gaps: a missing one was deleted, or times were corrected.
    return RevocationBatch(head, tuple(later), complete=len(later) == head - after)
