"""Writes a `Population` into a token store's own tables, many rows in a statement; `check` compares them with `add`.

Indexes are dropped before and made again afterwards, from what the database says of them. So the rows lie as close as
they can, and PostgreSQL is told to look at its statistics, which autovacuum would do.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import asyncpg

from bench.growth.population import KINDS, Population
from ostiary_gateway.interfaces.token_store import Session, TokenStore
from ostiary_gateway.stores import stored_session
from ostiary_gateway.stores.sqlite import database_file
from ostiary_gateway.stores.stored_session import SESSION_KINDS, encode_body, index_names, micros

Rows = Iterator[tuple[object, ...]]

_SESSION_COLUMNS = ("id", "username", "created_at", "expires_at", "body", "sequence", "kind")
_TOKEN_COLUMNS = ("digest", "session", "kind", "issued_at", "expires_at", "delegation")
_GROUP_DIGEST_BYTES = 16


def _session_rows(people: Population) -> Rows:
    for number in range(people.sessions):
        session = people.session(number)
        times = micros(session.created_at), micros(session.expires_at)
        kind = SESSION_KINDS[session.kind]
        yield session.id, session.user.username, *times, encode_body(session), session.sequence, kind


def _token_rows(people: Population) -> Rows:
    """Sessions have the numbers from 1 on."""
    kinds = [stored_session.KINDS[kind] for kind in KINDS]
    times = [(micros(session.created_at), micros(session.expires_at)) for session in _sessions(people)]
    for digest, number, place in people.digests():
        yield digest, number + 1, kinds[place], *times[number], ""


def _sessions(people: Population) -> Iterator[Session]:
    return map(people.session, range(people.sessions))


# --- SQLite ---


def fill_sqlite(path: Path, people: Population) -> None:
    """The file must be there, with its tables."""
    with closing(database_file.connect(str(path))) as db:
        for pragma in ("synchronous = OFF", "journal_mode = MEMORY", "cache_size = -400000"):
            db.execute(f"PRAGMA {pragma}")
        indexes = db.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql <> '' AND tbl_name IN (?, ?)",
            ("sessions", "tokens"),
        ).fetchall()
        db.execute("BEGIN")
        for name, _ in indexes:
            db.execute(f"DROP INDEX {name}")
        _insert(db, "sessions", _SESSION_COLUMNS, _session_rows(people))
        names = sorted(
            (name, number + 1) for number, session in enumerate(_sessions(people)) for name in index_names(session)
        )
        _insert(db, "session_groups", ("name", "session"), iter(names))
        _insert(db, "tokens", _TOKEN_COLUMNS, _token_rows(people))
        for _, statement in indexes:
            db.execute(statement)
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")


def _insert(db: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: Rows) -> None:
    places = ", ".join("?" * len(columns))
    db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", rows)


# --- PostgreSQL ---


async def fill_postgresql(connection: asyncpg.Connection, schema: str, people: Population) -> None:
    """The schema must be there, with its tables."""
    indexes = await connection.fetch(
        """SELECT i.indexrelid::regclass::text AS name, pg_get_indexdef(i.indexrelid) AS statement
            FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = $1 AND c.relname IN ('sessions', 'tokens') AND NOT i.indisunique""",
        schema,
    )
    for row in indexes:
        await connection.execute(f"DROP INDEX {row['name']}")
    numbered = ((number + 1, *row, _group_digests(people, number)) for number, row in enumerate(_session_rows(people)))
    columns = ["number", *_SESSION_COLUMNS, "groups"]
    await connection.copy_records_to_table("sessions", schema_name=schema, records=numbered, columns=columns)
    await connection.execute(f"SELECT setval(pg_get_serial_sequence('{schema}.sessions', 'number'), {people.sessions})")
    await connection.copy_records_to_table(
        "tokens", schema_name=schema, records=_token_rows(people), columns=list(_TOKEN_COLUMNS)
    )
    await connection.execute("SET maintenance_work_mem = '256MB'")
    for row in indexes:
        await connection.execute(row["statement"])
    await connection.execute(f"VACUUM ANALYZE {schema}.sessions")
    await connection.execute(f"VACUUM ANALYZE {schema}.tokens")


def _group_digests(people: Population, number: int) -> list[bytes]:
    names = index_names(people.session(number))
    return sorted(hashlib.sha256(name.encode()).digest()[:_GROUP_DIGEST_BYTES] for name in names)


# --- the same by `add`, and what then lies in the tables ---


async def add_one_by_one(store: TokenStore, people: Population) -> None:
    for number in range(people.sessions):
        await store.add(people.session(number), people.tokens_of(number))


def sqlite_contents() -> list[str]:
    """Statements that read all of it, without the numbers that the database gave, and the statements of its schema."""
    return [
        *_contents("", "s.used_at"),
        "SELECT s.id, g.name FROM session_groups g JOIN sessions s ON s.number = g.session ORDER BY 1, 2",
        "SELECT name, sql FROM sqlite_master ORDER BY name",
    ]


def postgresql_contents(schema: str) -> list[str]:
    groups = "(SELECT string_agg(name::text, ' ' ORDER BY name) FROM unnest(s.groups) AS name)"
    indexes = f"SELECT replace(indexdef, '{schema}.', '') FROM pg_indexes WHERE schemaname = '{schema}' ORDER BY 1"
    return [*_contents(f"{schema}.", f"s.used_at, {groups}"), indexes]


def _contents(prefix: str, more: str) -> list[str]:
    sessions = ", ".join(f"s.{name}" for name in _SESSION_COLUMNS)
    tokens = ", ".join(f"t.{name}" for name in _TOKEN_COLUMNS if name != "session")
    both = f"{prefix}tokens t JOIN {prefix}sessions s ON s.number = t.session"
    return [
        f"SELECT {sessions}, {more} FROM {prefix}sessions s ORDER BY s.id",
        f"SELECT s.id, {tokens} FROM {both} ORDER BY t.digest",
    ]
