"""How sessions, tokens and records lie in a SQLite file: the tables, the queries, and rows as values.

Called by the SQLite token store, and by `ostiary.plugins.sqlite.changes` inside its transactions. The revocations and
the time are in `ostiary.plugins.sqlite.log`. How a session is written into columns is told in
`ostiary.plugins.common.sessions.stored_session`; its username and its groups are indexed as they are.
"""

from __future__ import annotations

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

SESSION_COLUMNS = "s.id, s.username, s.created_at, s.expires_at, s.body, s.sequence, s.kind, s.used_at"
# Expired ones too, with the latest time that anybody has seen: `is_alive` says whether they are good.
FIND = f"""SELECT {SESSION_COLUMNS}, t.kind, t.issued_at, t.expires_at, t.delegation, c.latest, c.steps
    FROM tokens t JOIN sessions s ON s.number = t.session JOIN state c
    WHERE t.digest = ?"""  # noqa: S608
SESSION = f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE s.id = ? AND s.expires_at > {log.NOW}"  # noqa: S608
COUNT = "SELECT count(*) FROM tokens"
COUNT_SESSIONS = f"SELECT count(*) FROM sessions s WHERE s.username = ? AND s.kind = ? AND s.expires_at > {log.NOW}"  # noqa: S608
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
        where.append("s.kind = ?")
        arguments.append(SESSION_KINDS[kind])
    if after is not None:
        where.append("(s.created_at, s.number) < (?, ?)")
        arguments += after
    query = f"""SELECT {SESSION_COLUMNS}, s.number FROM sessions s WHERE {" AND ".join(where)}
        ORDER BY s.created_at DESC, s.number DESC LIMIT ?"""  # noqa: S608
    return query, (*arguments, limit)
