"""Runs statements of the token store: on a connection of the pool, within a time limit, and again where that is safe.

Called by the parts of the store. A server that takes no writes any more, or is gone, costs one attempt: all connections
are dropped, and the next one goes to whichever host takes writes then. What may have been committed is never repeated
by itself and never acknowledged: the caller is told that the store is unavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import asyncpg

from ostiary.errors import ProviderError
from ostiary.plugins.postgresql.connections import PATIENCE_SECONDS, Connection, ConnectionPool, DatabaseConnector
from ostiary.plugins.postgresql.failures import FailureExplanation, explain
from ostiary.plugins.postgresql.migrations import Migrations, quote_identifier
from ostiary.plugins.postgresql.settings import Pooler, PostgresqlSettings

# A row as asyncpg returns it; its columns are those of the statement.
Row: TypeAlias = Any
T = TypeVar("T")

# How often a call is made that had no effect, because another was in its way.
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
        """The rows of one statement, in a transaction of its own. *repeatable*: having been made twice is harmless.

        *seconds* is for what may take longer than others. Without *prepare* the schema is taken as it is. Raises
        `ProviderError` if it cannot be made.
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
        """Make the same call, which is repeatable, for each of *rows*, all in one transaction."""
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

    # --- attempts ---

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
    # Where no connection can be had all hosts have been tried, and who has waited for an answer has waited enough.
    if not failed.has_begun or explanation.slow or attempt > 1:
        return False
    return explanation.elsewhere and (explanation.undone or repeatable)


@asynccontextmanager
async def transaction(connection: Connection, seconds: float) -> AsyncIterator[None]:
    """A transaction with its own time limits. Behind a pooler it also keeps the call on one connection to the server.

    READ WRITE: a standby refuses to begin, so that nobody is answered from a copy that lags behind.
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
