"""A SQLite token store as a whole: read out for another store, and filled from one.

Called by the SQLite token store: reading in a transaction of its own, writing inside the store's transactions. How rows
look is told in `ostiary.plugins.sqlite.schema`, revocations in `ostiary.plugins.sqlite.log`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime

from ostiary.interfaces.store_abilities.moving import StoredLog, StoredSession
from ostiary.interfaces.token_store import TokenRecord
from ostiary.plugins.common.sessions.stored_session import decode_token, micros
from ostiary.plugins.sqlite import changes, log
from ostiary.plugins.sqlite.log import Row
from ostiary.plugins.sqlite.schema import SESSION_COLUMNS, decode_session

# The tokens of these sessions, in few statements, with fewer parameters than any SQLite allows.
SESSIONS_AT_ONCE = 500


# --- read out ---


def select_log(db: sqlite3.Connection) -> tuple[int, int, list[Row]]:
    (forgotten,) = db.execute("SELECT forgotten FROM state").fetchone()
    return log.last_revocation(db), forgotten, db.execute(log.ALL).fetchall()


def decode_log(head: int, forgotten: int, rows: Sequence[Row]) -> StoredLog:
    undone = frozenset(row[0] for row in rows if row[-1])
    return StoredLog(head, forgotten, tuple(log.decode_revocation(row[:-1]) for row in rows), undone)


def select_sessions(db: sqlite3.Connection, after: str, limit: int, *, now: datetime) -> tuple[list[Row], list[Row]]:
    """Sessions, and the tokens of all of them, each with the number of its session in front."""
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


# --- filled ---


def put_log(db: sqlite3.Connection, new: StoredLog) -> int | None:
    """Take over the log; returns the own last number, and changes nothing, if that is further."""
    head = log.last_revocation(db)
    if head > new.head:
        return head
    db.execute("DELETE FROM revocations")
    for revocation in new.revocations:
        log.put(db, revocation, undone=revocation.sequence in new.undone)
    # After the rows: each of them has moved the number on.
    log.start_sequence(db, new.head)
    db.execute("UPDATE state SET forgotten = ?", (new.forgotten,))
    return None


def put_sessions(db: sqlite3.Connection, new: Sequence[StoredSession], *, now: datetime, seen: log.Seen) -> None:
    changes.correct_times(db, now, seen)
    for stored in new:
        changes.replace_session(db, stored.session, stored.tokens)
    log.advance_time(db, now)
