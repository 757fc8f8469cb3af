"""Run the statements of the token store: on a pooled connection, with a timeout, and with retries where that is safe.

A server that is gone, or takes no writes any more, costs one attempt: all connections are dropped, and the next attempt
uses the host that takes writes then. What may have been committed is neither retried nor acknowledged: the caller gets
an error that the store is unavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar

import asyncpg

from ostiary.errors import ProviderError
from ostiary_gateway.stores.postgresql.connections import (
    PATIENCE_SECONDS,
    Connection,
    ConnectionPool,
    DatabaseConnector,
    FailureExplanation,
    StoreFailure,
    explain,
)
from ostiary_gateway.stores.postgresql.settings import Pooler, PostgresqlSettings

# Migrations. A version is a set of files in ``steps/``. Each is applied in a transaction under a lock, so of two
# gateways
# that start concurrently one applies it and the other finds it done. Steps only add: a table, a column with a default,
# a
# function under a new name. The previous version can therefore use the newer schema, and replicas can be updated one
# after the other; `USABLE_FROM` says which versions can.

VERSION = 4
# By version of the schema: the oldest version of a gateway that can use it.
USABLE_FROM = {1: 1, 2: 1, 3: 1, 4: 1}
FILES = {
    1: ("0001_tables", "0001_time_and_log", "0001_sessions", "0001_replicas", "0001_moving"),
    2: ("0002_programs", "0002_objects"),
    3: ("0003_owners",),
    4: ("0004_lists",),
}
# Creating indexes on tables that are in use takes time.
MIGRATION_SECONDS = 60.0
_LOCK = "SELECT pg_advisory_xact_lock(1869837418, hashtext($1))"
# From the tables of the catalog: functions such as to_regclass use a cache, which may lack what another connection has
# just created.
_TABLES = """SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname LIKE $2"""
_VERSION_TABLE = """CREATE TABLE {schema}.version (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), version integer NOT NULL, usable_from integer NOT NULL)"""


def quote_identifier(schema: str) -> str:
    """Quote an identifier; the settings allow neither quotes nor capitals."""
    return f'"{schema}"'


def channel_of(schema: str) -> str:
    return f"ostiary_{schema}"


def script(schema: str, version: int) -> str:
    folder = files("ostiary_gateway.stores.postgresql") / "steps"
    text = "\n".join((folder / f"{name}.sql").read_text("utf-8") for name in FILES[version])
    return text.replace("@schema@", quote_identifier(schema)).replace("@channel@", channel_of(schema))


class Migrations:
    """The known versions of the schema; a test passes others to simulate a later one."""

    def __init__(
        self,
        *,
        version: int = VERSION,
        usable_from: Mapping[int, int] | None = None,
        scripts: Mapping[int, str] | None = None,
    ) -> None:
        self.version = version
        self._usable_from = usable_from or USABLE_FROM
        self._scripts = scripts or {}

    async def prepare(self, connection: Connection, schema: str) -> None:
        """Create or update the schema. Raises `StoreFailure` if this version cannot use it."""
        # In a transaction, so that a pooler does not switch the server connection in between.
        async with connection.transaction():
            await self._check_encoding(connection)
            version = await self._read_version(connection, schema)
        for step in range(version + 1, self.version + 1):
            await self._apply(connection, schema, step)

    async def _check_encoding(self, connection: Connection) -> None:
        encoding = await connection.fetchval("SHOW server_encoding")
        if encoding != "UTF8":
            hint = "create one with: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
            raise StoreFailure(f"the database has the encoding {encoding}, and names need UTF8", hint)

    async def _read_version(self, connection: Connection, schema: str) -> int:
        """Return the version; zero if the schema does not exist yet."""
        if not await connection.fetchval(_TABLES, schema, "version"):
            return 0
        row = await connection.fetchrow(f"SELECT version, usable_from FROM {quote_identifier(schema)}.version")  # noqa: S608
        if row is None:
            raise StoreFailure("the schema is damaged: the row of the table version is missing")
        if row["usable_from"] > self.version:
            cause = f"the schema has version {row['version']}, and this ostiary knows up to {self.version}"
            raise StoreFailure(cause, "use the version of ostiary that wrote it, or name another schema")
        return int(row["version"])

    async def _apply(self, connection: Connection, schema: str, version: int) -> None:
        async with connection.transaction():
            # Another gateway may be migrating: the second one waits here, and then finds it done.
            await connection.execute("SELECT set_config('statement_timeout', '60s', true)")
            await connection.execute(_LOCK, schema, timeout=MIGRATION_SECONDS)
            current = await self._read_version(connection, schema)
            if current >= version:
                return
            if current == 0:
                await self._create(connection, schema)
            text = self._scripts.get(version) or script(schema, version)
            await connection.execute(text, timeout=MIGRATION_SECONDS)
            await connection.execute(
                f"UPDATE {quote_identifier(schema)}.version SET version = $1, usable_from = $2",  # noqa: S608
                version,
                self._usable_from[version],
            )

    async def _create(self, connection: Connection, schema: str) -> None:
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
            await connection.execute(f"CREATE SCHEMA {quote_identifier(schema)}")
        elif await connection.fetchval(_TABLES, schema, "%"):
            raise StoreFailure("the schema has tables of another program", "name another schema in store.schema")
        await connection.execute(_VERSION_TABLE.format(schema=quote_identifier(schema)))
        await connection.execute(f"INSERT INTO {quote_identifier(schema)}.version VALUES (true, 0, 0)")  # noqa: S608


# A row as asyncpg returns it; its columns are those of the statement.
Row: TypeAlias = Any
T = TypeVar("T")

# Maximum number of attempts for a call that had no effect because of a conflict.
ATTEMPTS = 5


class Database:
    """One schema of one database. Nothing is opened before the first call."""

    def __init__(self, settings: PostgresqlSettings, *, migrations: Migrations | None = None) -> None:
        self.settings = settings
        self._schema = quote_identifier(settings.schema)
        self._migrations = migrations or Migrations()
        is_pooled = settings.pooler is Pooler.TRANSACTION
        self._pool = ConnectionPool(
            DatabaseConnector(settings, settings.addresses, is_pooled=is_pooled), settings.connections
        )
        self._is_prepared = False
        self._preparing = asyncio.Lock()
        self._closed = False

    async def fetch(
        self,
        statement: str,
        *arguments: object,
        repeatable: bool,
        seconds: float | None = None,
        prepare: bool = True,
    ) -> list[Row]:
        """Return the rows of one statement, in a transaction of its own. *repeatable*: running it twice is harmless.

        *seconds* overrides the timeout. Without *prepare*, the schema is not created or updated. Raises `ProviderError`
        if the statement cannot be run.
        """
        statement = statement.replace("@schema@", self._schema)
        if seconds is None and self.settings.pooler is Pooler.NONE:
            return await self._run(lambda connection: connection.fetch(statement, *arguments), repeatable, prepare)
        limit = seconds or self.settings.command_timeout

        async def call(connection: Connection) -> list[Row]:
            async with transaction(connection, limit):
                rows: list[Row] = await connection.fetch(statement, *arguments, timeout=limit + PATIENCE_SECONDS)
                return rows

        return await self._run(call, repeatable, prepare)

    async def execute_many(self, statement: str, rows: Sequence[Sequence[object]], *, seconds: float) -> None:
        """Run a repeatable statement for each of *rows*, all in one transaction."""
        statement = statement.replace("@schema@", self._schema)

        async def call(connection: Connection) -> None:
            async with transaction(connection, seconds):
                await connection.executemany(statement, rows, timeout=seconds + PATIENCE_SECONDS)

        await self._run(call, repeatable=True)

    async def close(self) -> None:
        self._closed = True
        await self._pool.close()

    def check_open(self) -> None:
        if self._closed:
            raise self.unavailable("it is closed")

    def unavailable(self, cause: str, hint: str | None = None) -> ProviderError:
        summary, where = "the token store cannot be used", self.settings.place
        return ProviderError(summary, cause=cause, where=where, hint=hint, code="token-store-unavailable")

    # Attempts.

    async def _run(self, work: Callable[[Connection], Awaitable[T]], repeatable: bool, prepare: bool = True) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            outcome = await self._attempt(work, prepare)
            if not isinstance(outcome, _Failed):
                return outcome
            explanation = outcome.explanation
            if attempt == ATTEMPTS or not _may_repeat(outcome, attempt, repeatable):
                raise self.unavailable(explanation.cause, explanation.hint)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, work: Callable[[Connection], Awaitable[T]], prepare: bool) -> T | _Failed:
        self.check_open()
        has_begun = False
        try:
            async with self._pool.connection() as connection:
                if prepare and not self._is_prepared:
                    await self._prepare(connection)
                has_begun = True
                return await work(connection)
        except Exception as error:
            if isinstance(error, ValueError) and not isinstance(error, OSError):
                # An argument that no column can hold; nothing was sent. (A certificate error is both.)
                raise
            self.check_open()
            explanation = explain(error)
            if explanation.elsewhere:
                self._pool.drop_all()
            return _Failed(explanation, has_begun)

    async def _prepare(self, connection: Connection) -> None:
        async with self._preparing:
            if not self._is_prepared:
                await self._migrations.prepare(connection, self.settings.schema)
                self._is_prepared = True


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why an attempt failed; `has_begun`: the statement was sent, or may have been."""

    explanation: FailureExplanation
    has_begun: bool


def _may_repeat(failed: _Failed, attempt: int, repeatable: bool) -> bool:
    explanation = failed.explanation
    if explanation.conflict:
        return True
    # Without a connection all hosts have been tried already, and a slow call has used up the time.
    if not failed.has_begun or explanation.slow or attempt > 1:
        return False
    return explanation.elsewhere and (explanation.undone or repeatable)


@asynccontextmanager
async def transaction(connection: Connection, seconds: float) -> AsyncIterator[None]:
    """A transaction with its own timeouts. Behind a pooler it also pins the call to one connection to the server.

    READ WRITE: a standby rejects it, so that no stale data is read from a lagging replica.
    """
    milliseconds = max(1, round(seconds * 1000))
    await connection.execute(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
        f"SET LOCAL statement_timeout = {milliseconds};"
        f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds};"
        "SET LOCAL jit = off"
    )
    try:
        yield
    except asyncpg.PostgresError:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")
