"""How sessions, tokens and records lie in a SQLite file: the tables, the queries, and rows as values.

Called by the SQLite token store, and by `ostiary.plugins.sqlite.changes` inside its transactions. The revocations and
the time are in `ostiary.plugins.sqlite.log`. A session's user is one compact JSON row; its username and its groups are
indexed beside it as they are.
"""

from __future__ import annotations

import json
from datetime import datetime

from ostiary.interfaces.token_store import (
    Found,
    Session,
    TokenKind,
    TokenRecord,
)
from ostiary.model import UserInfo
from ostiary.plugins.sqlite import log
from ostiary.plugins.sqlite.log import Row, micros, moment_of

KINDS = {TokenKind.ACCESS: 0, TokenKind.RENEWAL: 1, TokenKind.SPENT: 2, TokenKind.BROWSER: 3}
_KIND_OF = {number: kind for kind, number in KINDS.items()}
SPENT, ACCESS = KINDS[TokenKind.SPENT], KINDS[TokenKind.ACCESS]
_FOUND_COLUMNS = 9

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

_SESSION_COLUMNS = "s.id, s.username, s.created_at, s.expires_at, s.body, s.sequence"
# Expired ones too, with the latest time that anybody has seen: `is_alive` says whether they are good.
FIND = f"""SELECT t.kind, t.issued_at, t.expires_at, {_SESSION_COLUMNS}, c.latest, c.steps
    FROM tokens t JOIN sessions s ON s.number = t.session JOIN state c
    WHERE t.digest = ?"""  # noqa: S608
SESSION = f"SELECT {_SESSION_COLUMNS} FROM sessions s WHERE s.id = ? AND s.expires_at > {log.NOW}"  # noqa: S608
COUNT = "SELECT count(*) FROM tokens"
RECORD = "SELECT data FROM records WHERE digest = ? AND expires_at > ?"


# --- rows to values ---


def decode_token(digest: bytes, row: Row) -> Found:
    """What `FIND` has selected."""
    kind, issued_at, expires_at, *rest = row[:_FOUND_COLUMNS]
    session = decode_session(rest)
    token = TokenRecord(digest, session.id, moment_of(issued_at), moment_of(expires_at), _KIND_OF[kind])
    return Found(token, session)


def clock_of(row: Row) -> tuple[int, int]:
    """The latest time that was seen, and how often the clock was set back."""
    return row[-2], row[-1]


def is_alive(row: Row, now: int) -> bool:
    """Whether what `FIND` has found has not expired: neither the token nor its session."""
    return bool(row[2] > now and row[6] > now)


def decode_session(row: Row) -> Session:
    session_id, username, created_at, expires_at, body, sequence = row
    # `sealed` was added later: sessions of an earlier version have none.
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


def encode_body(of: Session) -> str:
    user = of.user
    parts = [user.uid, user.groups, user.extra, of.provider, of.sources, of.client, of.sealed]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def groups_in(body: str) -> list[str]:
    groups: list[str] = json.loads(body)[1]
    return groups


# --- reading ---


def select_sessions(
    username: str | None, group: str | None, *, now: datetime, limit: int
) -> tuple[str, tuple[str | int, ...]]:
    where = [f"s.expires_at > {log.NOW}"]
    arguments: list[str | int] = [micros(now)]
    if username is not None:
        where.append("s.username = ?")
        arguments.append(username)
    if group is not None:
        where.append("s.number IN (SELECT session FROM session_groups WHERE name = ?)")
        arguments.append(group)
    query = f"SELECT {_SESSION_COLUMNS} FROM sessions s WHERE {' AND '.join(where)} ORDER BY s.created_at DESC LIMIT ?"  # noqa: S608
    return query, (*arguments, limit)
