"""Transactions of a SQLite token store: add, refresh, revoke and expire sessions, tokens and records."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime

from ostiary_gateway.interfaces.token_store import (
    MOST_RECORDS,
    Found,
    Revocation,
    RevocationKind,
    Session,
    TokenKind,
    TokenRecord,
)
from ostiary_gateway.stores.sqlite import log
from ostiary_gateway.stores.sqlite.database_file import ACCESS, FIND, RECORD, SPENT, decode_token, is_alive
from ostiary_gateway.stores.sqlite.log import Row
from ostiary_gateway.stores.stored_session import (
    SESSION_KINDS,
    encode_body,
    encode_kind,
    index_names,
    index_names_in,
    kind_number,
    micros,
)

ENDED_AT_A_TIME = 1000
# Sessions ended per transaction, for a revocation of many.
END_BATCH = 200


def add(
    db: sqlite3.Connection, added: Session, tokens: Sequence[TokenRecord], *, now: datetime, seen: log.Seen
) -> bool:
    """Add a session. Returns False without a change if a revocation covers the session."""
    correct_times(db, now, seen)
    since = log.last_before(db, added.created_at) if added.sequence is None else added.sequence
    if log.covers(db, added, since=since):
        return False
    _insert_tokens(db, _put_session(db, added, since), tokens)
    log.advance_time(db, now)
    return True


def add_tokens(
    db: sqlite3.Connection, session_id: str, tokens: Sequence[TokenRecord], *, now: datetime, seen: log.Seen
) -> bool:
    """Add tokens. Returns False without a change if the session is not active."""
    correct_times(db, now, seen)
    living = "SELECT number FROM sessions WHERE id = ? AND expires_at > ?"
    row = db.execute(living, (session_id, log.advance_time(db, now))).fetchone()
    if row is None:
        return False
    _insert_tokens(db, row[0], tokens)
    return True


def note_use(db: sqlite3.Connection, used: Mapping[str, datetime]) -> None:
    rows = [(micros(moment), session_id) for session_id, moment in used.items()]
    db.executemany("UPDATE sessions SET used_at = max(coalesce(used_at, 0), ?) WHERE id = ?", rows)


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
        _end_access_tokens(db, number, owner=renewed.user.username, now=time_now)
    db.execute("UPDATE tokens SET kind = ?, issued_at = ? WHERE digest = ?", (SPENT, micros(at), spent))
    _insert_tokens(db, number, tokens)
    return True


def revoke(db: sqlite3.Connection, revoked: Revocation, *, now: datetime) -> int:
    time_now = log.advance_time(db, now)
    if revoked.kind is RevocationKind.TOKEN:
        ended = _end_token(db, bytes.fromhex(revoked.value), time_now)
    else:
        ended = _end_sessions(db, *_condition_for(revoked), now=time_now)
    log.record(db, revoked, time_now)
    return ended


def end_some(db: sqlite3.Connection, revoked: Revocation, *, now: datetime) -> tuple[int, bool]:
    """End some of the sessions that *revoked* covers; return how many were active, and whether there may be more."""
    rows = _select_ended(db, *_condition_for(revoked), limit=END_BATCH)
    _delete_sessions(db, rows)
    return _count_living(rows, log.advance_time(db, now)), len(rows) == END_BATCH


def heartbeat(db: sqlite3.Connection, *, now: datetime, seen: log.Seen) -> None:
    correct_times(db, now, seen)
    log.advance_time(db, now)


def correct_times(db: sqlite3.Connection, now: datetime, seen: log.Seen) -> None:
    """If the clock was set back: delete what has expired, and set all other times back by as much."""
    step = log.step_back(db, now, seen)
    if step:
        expired = micros(now) + step
        while _sweep_portion(db, expired, ENDED_AT_A_TIME)[1]:
            pass
        log.set_times_back(db, step, now)


def sweep(db: sqlite3.Connection, *, now: datetime, limit: int) -> tuple[int, bool]:
    """Delete some of what has expired, about *limit*; return the number of tokens, and whether there may be more."""
    at = log.advance_time(db, now)
    swept, more = _sweep_portion(db, at, limit)
    if not more:
        log.forget(db, at)
        # Never so many that they would need several transactions.
        db.execute("DELETE FROM records WHERE expires_at <= ?", (at,))
    return swept, more


def _sweep_portion(db: sqlite3.Connection, at: int, limit: int) -> tuple[int, bool]:
    expired = db.execute(
        "DELETE FROM tokens WHERE digest IN (SELECT digest FROM tokens WHERE expires_at <= ? LIMIT ?)", (at, limit)
    ).rowcount
    if expired == limit:
        # Sessions follow when hardly any tokens are left: some have hundreds, and other work waits for this
        # transaction.
        return expired, True
    rows = db.execute("SELECT number, body FROM sessions WHERE expires_at <= ? LIMIT ?", (at, limit)).fetchall()
    return expired + _delete_sessions(db, rows), len(rows) == limit


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


def replace_session(db: sqlite3.Connection, moved: Session, tokens: Sequence[TokenRecord]) -> None:
    """Store a session of another store unchanged, including its `sequence`."""
    number = _put_session(db, moved, 0)
    used_at = None if moved.last_used_at is None else micros(moved.last_used_at)
    row = (moved.sequence or 0, used_at, number)
    db.execute("UPDATE sessions SET sequence = ?, used_at = ? WHERE number = ?", row)
    db.execute("DELETE FROM tokens WHERE session = ?", (number,))
    _insert_tokens(db, number, tokens)


def _put_session(db: sqlite3.Connection, put: Session, sequence: int) -> int:
    body, created_at, expires_at = encode_body(put), micros(put.created_at), micros(put.expires_at)
    old = db.execute("SELECT number, body FROM sessions WHERE id = ?", (put.id,)).fetchone()
    if old is None:
        row = (put.id, put.user.username, created_at, expires_at, body, sequence, SESSION_KINDS[put.kind])
        columns = "id, username, created_at, expires_at, body, sequence, kind"
        inserted = db.execute(f"INSERT INTO sessions ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608
        number = inserted.lastrowid
        assert number is not None, "a row was inserted"
    else:
        number = int(old[0])
        db.execute(
            "UPDATE sessions SET username = ?, created_at = ?, expires_at = ?, body = ?, kind = ? WHERE number = ?",
            (put.user.username, created_at, expires_at, body, SESSION_KINDS[put.kind], number),
        )
        _delete_groups(db, [old])
    if put.last_used_at is not None:
        note_use(db, {put.id: put.last_used_at})
    names = [(name, number) for name in index_names(put)]
    db.executemany("INSERT OR IGNORE INTO session_groups (name, session) VALUES (?, ?)", names)
    return number


def _insert_tokens(db: sqlite3.Connection, number: int, tokens: Sequence[TokenRecord]) -> None:
    rows = [
        (
            *(token.digest, number, kind_number(token)),
            *(micros(token.issued_at), micros(token.expires_at), token.delegation),
        )
        for token in tokens
    ]
    columns = "digest, session, kind, issued_at, expires_at, delegation"
    db.executemany(f"INSERT INTO tokens ({columns}) VALUES (?, ?, ?, ?, ?, ?)", rows)  # noqa: S608


def _condition_for(revoked: Revocation) -> tuple[str, tuple[str | int, ...]]:
    """Return the condition for sessions that *revoked* ends: `ostiary_gateway.sessions.ends`, in SQL.

    Every existing session began before the number that *revoked* is about to get.
    """
    if revoked.kind is RevocationKind.SESSION:
        return "id = ?", (revoked.value,)
    condition, arguments = "1", list[str | int]()
    kind, value = encode_kind(revoked)
    if kind is RevocationKind.USER:
        condition, arguments = "username = ?", [value]
    elif kind is RevocationKind.GROUP:
        condition, arguments = "number IN (SELECT session FROM session_groups WHERE name = ?)", [value]
    if revoked.at is not None:
        condition += " AND created_at <= ?"
        arguments.append(micros(revoked.at))
    return condition, tuple(arguments)


def _find(db: sqlite3.Connection, digest: bytes, now: int) -> Found | None:
    row = db.execute(FIND, (digest,)).fetchone()
    return decode_token(digest, row) if row is not None and is_alive(row, now) else None


def _end_sessions(db: sqlite3.Connection, condition: str, arguments: tuple[str | int, ...], *, now: int) -> int:
    living = 0
    # In portions, but in one transaction: a million sessions need not fit into memory.
    while rows := _select_ended(db, condition, arguments, limit=ENDED_AT_A_TIME):
        living += _count_living(rows, now)
        _delete_sessions(db, rows)
    return living


def _select_ended(db: sqlite3.Connection, condition: str, arguments: tuple[str | int, ...], *, limit: int) -> list[Row]:
    query = f"SELECT number, body, expires_at FROM sessions WHERE {condition} LIMIT ?"  # noqa: S608
    return db.execute(query, (*arguments, limit)).fetchall()


def _count_living(rows: Sequence[Row], now: int) -> int:
    return sum(expires_at > now for _, _, expires_at in rows)


def _delete_sessions(db: sqlite3.Connection, rows: Sequence[Row]) -> int:
    """Delete sessions, given as (number, body, ...), with their tokens and groups; return the number of tokens."""
    if not rows:
        return 0
    numbers = [(row[0],) for row in rows]
    _delete_groups(db, rows)
    tokens = db.executemany("DELETE FROM tokens WHERE session = ?", numbers).rowcount
    db.executemany("DELETE FROM sessions WHERE number = ?", numbers)
    return tokens


def _delete_groups(db: sqlite3.Connection, rows: Sequence[Row]) -> None:
    pairs = [(name, row[0]) for row in rows for name in index_names_in(row[1])]
    db.executemany("DELETE FROM session_groups WHERE name = ? AND session = ?", pairs)


def _end_token(db: sqlite3.Connection, digest: bytes, now: int) -> int:
    token = _find(db, digest, now)
    # A used one stays, so that its reuse is detected.
    if token is None or token.token.kind is TokenKind.SPENT:
        return 0
    return db.execute("DELETE FROM tokens WHERE digest = ?", (digest,)).rowcount


def _end_access_tokens(db: sqlite3.Connection, number: int, *, owner: str, now: int) -> None:
    rows = db.execute("SELECT digest FROM tokens WHERE session = ? AND kind IN (?, ?)", (number, *ACCESS)).fetchall()
    for (digest,) in rows:
        db.execute("DELETE FROM tokens WHERE digest = ?", (digest,))
        ended = Revocation(RevocationKind.TOKEN, digest.hex(), by="ostiary: the user has changed", owner=owner)
        log.record(db, ended, now)
