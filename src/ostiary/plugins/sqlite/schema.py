"""How sessions, tokens and records lie in a SQLite file: the tables, the queries, and rows as values.

Called by the SQLite token store, and by `ostiary.plugins.sqlite.changes` inside its transactions. The revocations and
the time are in `ostiary.plugins.sqlite.log`. How a session is written into columns is told in
`ostiary.plugins.common.sessions.stored_session`; its username and its groups are indexed as they are.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime

from ostiary.interfaces.store_abilities.session_pages import ListedSession
from ostiary.interfaces.token_store import Found, Session, SessionKind, TokenKind
from ostiary.plugins.common.sessions import stored_session
from ostiary.plugins.common.sessions.session_places import place_text
from ostiary.plugins.common.sessions.stored_session import KINDS, NARROWED, SESSION_KINDS, micros
from ostiary.plugins.sqlite import log
from ostiary.plugins.sqlite.log import Row

SPENT = KINDS[TokenKind.SPENT]
ACCESS = (KINDS[TokenKind.ACCESS], NARROWED)
_SESSION_COLUMNS = 8
# Of a group with more sessions than this, the newest are looked for among the newest sessions of all: sorting all of
# the group's takes longer. If so many of these were looked at in vain, the group's are sorted after all.
LARGE_GROUP = 4_000
MOST_LOOKED_AT = 100_000

TABLES = (
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
# Columns that were added later, to files of earlier versions too. Each has a default, so that a program of an earlier
# version that has the file open can go on with it.
ADDED_COLUMNS = {
    "sessions": {"kind": "INTEGER NOT NULL DEFAULT 0", "used_at": "INTEGER"},
    "tokens": {"delegation": "TEXT NOT NULL DEFAULT ''"},
    "revocations": {"owner": "TEXT NOT NULL DEFAULT ''"},
}
# Indexes that were added later, likewise: SQLite keeps them up to date for every version.
ADDED_INDEXES = {"sessions_by_kind": "sessions (kind, created_at)"}

SESSION_COLUMNS = "s.id, s.username, s.created_at, s.expires_at, s.body, s.sequence, s.kind, s.used_at"
# Expired ones too, with the latest time that anybody has seen: `is_alive` says whether they are good.
FIND = f"""SELECT {SESSION_COLUMNS}, t.kind, t.issued_at, t.expires_at, t.delegation, c.latest, c.steps
    FROM tokens t JOIN sessions s ON s.number = t.session JOIN state c
    WHERE t.digest = ?"""  # noqa: S608
SESSION = f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE s.id = ? AND s.expires_at > {log.NOW}"  # noqa: S608
COUNT = "SELECT count(*) FROM tokens"
# The plus keeps the index of the kinds out of it: that of the users leads to a few sessions.
COUNT_SESSIONS = f"SELECT count(*) FROM sessions s WHERE s.username = ? AND +s.kind = ? AND s.expires_at > {log.NOW}"  # noqa: S608
RECORD = "SELECT data FROM records WHERE digest = ? AND expires_at > ?"


# --- rows to values ---


def decode_token(digest: bytes, row: Row) -> Found:
    """What `FIND` has selected."""
    session = stored_session.decode_session(*row[:_SESSION_COLUMNS])
    return Found(stored_session.decode_token(digest, session.id, *row[_SESSION_COLUMNS:-2]), session)


def clock_of(row: Row) -> tuple[int, int]:
    """The latest time that was seen, and how often the clock was set back."""
    return row[-2], row[-1]


def is_alive(row: Row, now: int) -> bool:
    """Whether what `FIND` has found has not expired: neither the token nor its session."""
    return bool(row[3] > now and row[10] > now)


def decode_session(row: Row) -> Session:
    return stored_session.decode_session(*row[:_SESSION_COLUMNS])


def decode_listed_session(row: Row) -> ListedSession:
    """What `select_sessions` has selected."""
    return ListedSession(decode_session(row), place_text(row[2], row[_SESSION_COLUMNS]))


# --- reading ---


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
    """Rows for `decode_listed_session`, the newest first, from *after* on. What is read does not grow with the file."""
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
    """Those among the `MOST_LOOKED_AT` newest of all. They are read one by one, until there are enough."""
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
    """*after* is when the last session of the page before began, and its number."""
    where = [f"s.expires_at > {log.NOW}"]
    arguments: list[str | int] = [micros(now)]
    if username is not None:
        where.append("s.username = ?")
        arguments.append(username)
    if group is not None:
        where.append("s.number IN (SELECT session FROM session_groups WHERE name = ?)")
        arguments.append(group)
    if kind is not None:
        # The plus keeps the index of the kinds out of it: that of the users, or the group's, leads to fewer sessions.
        where.append("s.kind = ?" if username is None and group is None else "+s.kind = ?")
        arguments.append(SESSION_KINDS[kind])
    if after is not None:
        where.append("(s.created_at, s.number) < (?, ?)")
        arguments += after
    query = f"""SELECT {SESSION_COLUMNS}, s.number FROM sessions s WHERE {" AND ".join(where)}
        ORDER BY s.created_at DESC, s.number DESC LIMIT ?"""  # noqa: S608
    return query, (*arguments, limit)
