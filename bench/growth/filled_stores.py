"""Token stores that hold a `Population`: SQLite in a file, PostgreSQL on its own server, both with commits on disk."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from bench.growth import fill
from bench.growth.population import Population, population
from ostiary_gateway.interfaces.token_store import TokenStore
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.stores.sqlite import database_file
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from tests.support.postgresql import DATABASE, PASSWORD, POSTGRESQL_15, USER, PostgresServer, running
from tests.support.postgresql_store import settings_for

_CHECKED_TOKENS = 1000
_CONFIG = "fsync = on\nshared_buffers = 256MB\nmax_wal_size = 4GB\n"
_FILLED_SCHEMA, _ADDED_SCHEMA = "filled", "added"


@dataclass(frozen=True, slots=True)
class FilledStore:
    """How to open it, its section in a gateway's configuration, and what it takes on the disk."""

    open: Callable[[], TokenStore]
    section: Mapping[str, object]
    disk_bytes: int


# Of a kind of store: fills one, and removes it at the end.
Fill = Callable[[Population], AbstractContextManager[FilledStore]]


@contextmanager
def sqlite() -> Iterator[Fill]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asyncio.run(_check_sqlite(folder))

        @contextmanager
        def filled(people: Population) -> Iterator[FilledStore]:
            path = folder / f"{people.tokens}.db"
            asyncio.run(_create(SqliteTokenStore(path)))
            fill.fill_sqlite(path, people)
            yield FilledStore(
                lambda: SqliteTokenStore(path), {"type": "sqlite", "path": str(path)}, path.stat().st_size
            )
            for file in folder.glob(f"{people.tokens}.db*"):
                file.unlink()

        yield filled


@contextmanager
def postgresql() -> Iterator[Fill]:
    with tempfile.TemporaryDirectory() as name, running(config=_CONFIG) as server:
        folder = Path(name)
        asyncio.run(_check_postgresql(server, folder))

        @contextmanager
        def filled(people: Population) -> Iterator[FilledStore]:
            settings = settings_for(server, folder=folder, schema=_FILLED_SCHEMA)
            section = {
                "type": "postgresql",
                "schema": settings.schema,
                "hosts": [f"{server.host}:{server.port}"],
                "database": DATABASE,
                "user": USER,
                "passwordFile": str(settings.password_file),
            }
            asyncio.run(_fill_postgresql(server, PostgresqlTokenStore(settings), people))
            size = server.sql(
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
                f" WHERE relkind = 'r' AND relnamespace = '{_FILLED_SCHEMA}'::regnamespace"
            )
            yield FilledStore(lambda: PostgresqlTokenStore(settings), section, int(size))
            server.sql(f"DROP SCHEMA {_FILLED_SCHEMA} CASCADE")

        yield filled


def has_postgresql() -> bool:
    return (POSTGRESQL_15 / "bin/postgres").exists()


async def _create(store: TokenStore) -> None:
    await store.count()
    await store.close()


async def _fill_postgresql(server: PostgresServer, store: PostgresqlTokenStore, people: Population) -> None:
    await _create(store)
    connection = await _connect(server)
    try:
        await fill.fill_postgresql(connection, _FILLED_SCHEMA, people)
    finally:
        await connection.close()


async def _connect(server: PostgresServer) -> asyncpg.Connection:
    return await asyncpg.connect(
        host=server.host, port=server.port, user=USER, password=PASSWORD, database=DATABASE, command_timeout=600
    )


# --- whether what is filled in is what `add` writes ---


async def _check_sqlite(folder: Path) -> None:
    people = population(_CHECKED_TOKENS, 0)
    rows = []
    for name in (_FILLED_SCHEMA, _ADDED_SCHEMA):
        path = folder / f"{name}.db"
        store = SqliteTokenStore(path)
        await store.count()
        if name == _ADDED_SCHEMA:
            await fill.add_one_by_one(store, people)
        await store.close()
        if name == _FILLED_SCHEMA:
            fill.fill_sqlite(path, people)
        with closing(database_file.connect(str(path))) as db:
            rows.append([db.execute(query).fetchall() for query in fill.sqlite_contents()])
    _compare(*rows)


async def _check_postgresql(server: PostgresServer, folder: Path) -> None:
    people = population(_CHECKED_TOKENS, 0)
    stores = {
        name: PostgresqlTokenStore(settings_for(server, folder=folder, schema=name))
        for name in (_FILLED_SCHEMA, _ADDED_SCHEMA)
    }
    await _fill_postgresql(server, stores[_FILLED_SCHEMA], people)
    await fill.add_one_by_one(stores[_ADDED_SCHEMA], people)
    await stores[_ADDED_SCHEMA].close()
    rows = []
    for name in stores:
        rows.append([server.sql(query) for query in fill.postgresql_contents(name)])
        server.sql(f"DROP SCHEMA {name} CASCADE")
    _compare(*rows)


def _compare(filled: Sequence[object], added: Sequence[object]) -> None:
    if filled != added:
        raise RuntimeError("the rows that the bench writes are not those of TokenStore.add: mend bench/growth/fill.py")
