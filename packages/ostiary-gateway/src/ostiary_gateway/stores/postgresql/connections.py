"""Connections to the server that takes writes: errors, failover between hosts, and a pool.

Of several hosts, the one that served last is tried first. If it takes long, the others are tried concurrently, so that
a hanging host delays callers only briefly.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg

from ostiary.core.pem import certificates
from ostiary.core.tls import TlsSettings, build_context, parse_certificate
from ostiary.errors import OstiaryError, TransportError
from ostiary_gateway.stores.postgresql.settings import DatabaseServer, Pooler, PostgresqlSettings, PostgresqlTls

# Errors. No cause or hint quotes a statement, a value or a password.


class StoreFailure(Exception):
    """An error with a cause and a hint of our own."""

    def __init__(self, cause: str, hint: str | None = None) -> None:
        super().__init__(cause)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class FailureExplanation:
    """What is wrong, and what follows from it for the failed call.

    `undone`: it certainly changed nothing. `elsewhere`: another connection may succeed. `slow`: it took so long that
    there is no time for another attempt. `conflict`: an immediate retry is likely to succeed.
    """

    cause: str
    hint: str | None = None
    undone: bool = False
    elsewhere: bool = False
    slow: bool = False
    conflict: bool = False


_READ_ONLY = "the server takes no writes: it is a standby, or read-only"
# By SQLSTATE, or its class of two characters.
_BY_STATE: dict[str, FailureExplanation] = {
    "25006": FailureExplanation(_READ_ONLY, undone=True, elsewhere=True),
    # The response of a standby to BEGIN READ WRITE.
    "0A000": FailureExplanation(_READ_ONLY, undone=True, elsewhere=True),
    "28P01": FailureExplanation("the password is wrong", "correct the file of store.passwordFile"),
    "28": FailureExplanation("the server refuses this role", "look at pg_hba.conf of the server"),
    "3D000": FailureExplanation("the database does not exist", "create it, or correct store.database"),
    "40": FailureExplanation("two calls were in each other's way", undone=True, conflict=True),
    "42501": FailureExplanation("the role lacks a privilege", "grant what the guide of this store lists", undone=True),
    "42P01": FailureExplanation("the schema is damaged: a table is missing", undone=True),
    "42": FailureExplanation(
        "the schema is damaged: a table, a column or a function is missing or changed", undone=True
    ),
    "XX001": FailureExplanation("the schema is damaged: the row of the table state is missing", undone=True),
    "53100": FailureExplanation(
        "the disk of the database is full", "free disk space on the database server", undone=True
    ),
    "53300": FailureExplanation(
        "the server has no connection left", "raise max_connections, or lower store.connections"
    ),
    "53": FailureExplanation("the server lacks resources", undone=True),
    "57014": FailureExplanation("the database took too long: it is slow, or a lock is held", undone=True, slow=True),
    "57P03": FailureExplanation("the server is starting or stopping", elsewhere=True, undone=True),
    "57": FailureExplanation("the server is going down", elsewhere=True),
    "08": FailureExplanation("the connection broke", elsewhere=True),
}
_DAMAGED_HINT = "restore the schema from a backup, or drop it: then everybody signs in again"


def explain(error: BaseException) -> FailureExplanation:
    if isinstance(error, StoreFailure):
        return FailureExplanation(str(error), error.hint)
    if isinstance(error, OstiaryError):
        return FailureExplanation(error.cause or error.summary, error.hint)
    if isinstance(error, asyncpg.PostgresError):
        return _explain_answer(error)
    if isinstance(error, TimeoutError):
        cause = "the database did not answer in time: it hangs, or cannot be reached"
        return FailureExplanation(cause, elsewhere=True, slow=True)
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "correct store.tls.ca or store.tls.serverName"
        return FailureExplanation(
            f"the server's certificate is not accepted: {error.verify_message}", hint, elsewhere=True
        )
    if isinstance(error, ssl.SSLError):
        return FailureExplanation(f"TLS failed: {error.reason or 'the server ended the connection'}", elsewhere=True)
    if isinstance(error, OSError):
        return FailureExplanation(f"the database cannot be reached: {_reason(error)}", elsewhere=True)
    # What asyncpg raises for a connection that ended while it was in use.
    return FailureExplanation("the connection broke", elsewhere=True)


def _explain_answer(error: asyncpg.PostgresError) -> FailureExplanation:
    state = getattr(error, "sqlstate", None) or ""
    explanation = _BY_STATE.get(state) or _BY_STATE.get(state[:2])
    if explanation is None:
        return FailureExplanation(f"the database refused the call (SQLSTATE {state or 'unknown'})", undone=True)
    # The server's message names the table or the role that is meant; it is one line and contains no value.
    words = " ".join(str(error.args[0] if error.args else "").split())[:200]
    cause = (
        f"{explanation.cause} ({words})" if words and state[:2] in ("28", "3D", "42", "53", "57") else explanation.cause
    )
    hint = _DAMAGED_HINT if explanation.cause.startswith("the schema is damaged") else explanation.hint
    return replace(explanation, cause=cause, hint=hint)


def _reason(error: OSError) -> str:
    if error.strerror and "Connect call failed" not in error.strerror:
        return error.strerror
    return "connection refused" if isinstance(error, ConnectionRefusedError) else type(error).__name__


# Time after which the next host is tried concurrently.
HEAD_START_SECONDS = 0.25
# How much longer than the server we wait, so that the server can report the timeout itself.
PATIENCE_SECONDS = 0.5
LARGEST_SECRET = 64 * 1024

Connection: TypeAlias = Any  # asyncpg has no types


class DatabaseConnector:
    """Opens connections to whichever of *addresses* takes writes.

    *is_pooled*: they are poolers, which may route each transaction to another server connection.
    """

    def __init__(self, settings: PostgresqlSettings, addresses: Sequence[DatabaseServer], *, is_pooled: bool) -> None:
        self._settings = settings
        self._addresses = list(addresses)
        self._is_pooled = is_pooled

    async def connect(self) -> Connection:
        """Open a connection. If no host is usable, raise the most informative of their errors."""
        tasks: list[asyncio.Task[Connection]] = []
        errors: list[BaseException] = []
        waiting = list(self._addresses)
        try:
            while waiting or tasks:
                if waiting:
                    address = waiting.pop(0)
                    tasks.append(asyncio.create_task(self._connect_to(address), name=str(address)))
                finished, _ = await asyncio.wait(
                    tasks, timeout=HEAD_START_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in finished:
                    tasks.remove(task)
                    if (error := task.exception()) is None:
                        self._prefer(task.get_name())
                        return task.result()
                    errors.append(error)
        finally:
            for task in tasks:
                task.add_done_callback(_end)
                task.cancel()
        raise min(errors, key=_how_telling)

    def _prefer(self, name: str) -> None:
        self._addresses.sort(key=lambda address: str(address) != name)

    async def _connect_to(self, address: DatabaseServer) -> Connection:
        settings = self._settings
        try:
            return await asyncpg.connect(
                host=address.host,
                port=address.port,
                user=settings.user,
                # Never None: asyncpg would read the environment, and files of the user.
                password=_read_password(settings.password_file),
                database=settings.database,
                ssl=_context_for(address, settings.tls),
                direct_tls=False,
                timeout=settings.connect_timeout,
                command_timeout=settings.command_timeout + PATIENCE_SECONDS,
                statement_cache_size=0 if self._is_pooled else 100,
                # Behind a pooler, each transaction checks this itself: see `database.transaction`.
                target_session_attrs="any" if self._is_pooled else "read-write",
                server_settings=_server_settings(settings),
            )
        except asyncpg.exceptions.TargetServerAttributeNotMatched:
            raise StoreFailure("no server takes writes: all that answer are standbys, or read-only") from None


def _server_settings(settings: PostgresqlSettings) -> dict[str, str]:
    if settings.pooler is Pooler.TRANSACTION:
        # A pooler rejects unknown settings; `database` sets the rest in each transaction.
        return {"application_name": "ostiary"}
    milliseconds = str(max(1, round(settings.command_timeout * 1000)))
    return {
        "application_name": "ostiary",
        # A call that timed out here must release its locks.
        "statement_timeout": milliseconds,
        "idle_in_transaction_session_timeout": milliseconds,
        # The functions read what others have committed while they waited for a lock.
        "default_transaction_isolation": "read committed",
        "search_path": "pg_catalog",
        # All statements are short: compiling one takes longer than any of them.
        "jit": "off",
    }


def _read_password(path: Path | None) -> str:
    if path is None:
        return ""
    return _read(path, "store.passwordFile").removesuffix("\n").removesuffix("\r")


def _read(path: Path, what: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(LARGEST_SECRET)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise StoreFailure(f"the file of {what} cannot be read: {reason}") from None


def _context_for(address: DatabaseServer, settings: PostgresqlTls | None) -> ssl.SSLContext | bool:
    """Return the TLS context of a host, always with verification; False for a local one, unless TLS is configured."""
    if address.is_socket or (address.is_local and settings is None):
        return False
    settings = settings or PostgresqlTls()
    authorities = None if settings.ca is None else certificates(_read(settings.ca, "store.tls.ca"))
    trust = TlsSettings(authorities, server_name=settings.server_name or None)
    try:
        if settings.certificate is None or settings.key is None:
            return build_context(trust)
        chain, key = _read(settings.certificate, "store.tls.certificate"), _read(settings.key, "store.tls.key")
        return build_context(trust, parse_certificate(chain, key))
    except TransportError:
        raise StoreFailure("the file of store.tls.ca holds no certificate in PEM format") from None
    except ValueError as error:
        raise StoreFailure(str(error), "correct store.tls.certificate and store.tls.key") from None


def _how_telling(error: BaseException) -> int:
    """Sort key: a server's response is more informative than an unreachable host, "no server takes writes" least."""
    return 2 if isinstance(error, StoreFailure) and "no server" in str(error) else int(isinstance(error, OSError))


def _end(task: asyncio.Task[Connection]) -> None:
    """Close a connection that was established too late."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


class ConnectionPool:
    """At most *size* connections, opened on demand; the most recently used is used next.

    asyncpg's own pool resets a connection after every use, which is a second round trip for each call.
    """

    def __init__(self, connector: DatabaseConnector, size: int) -> None:
        self._connector = connector
        self._free = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._generation = 0
        self._open: dict[Connection, int] = {}

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for one caller. It is closed after an exception, unless the server itself reported it."""
        async with self._free:
            connection = await self._take()
            try:
                yield connection
            except asyncpg.PostgresError:
                self._give_back(connection)
                raise
            except BaseException:
                self._drop(connection)
                raise
            self._give_back(connection)

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._drop(connection)
        generation = self._generation
        connection = await self._connector.connect()
        self._open[connection] = generation
        return connection

    def _give_back(self, connection: Connection) -> None:
        if connection.is_closed() or connection.is_in_transaction() or self._open.get(connection) != self._generation:
            self._drop(connection)
        else:
            self._idle.append(connection)

    def _drop(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        connection.terminate()

    def drop_all(self) -> None:
        """Stop using all connections: they lead to a server that no longer takes writes, or is gone."""
        self._generation += 1
        idle, self._idle = self._idle, []
        for connection in idle:
            self._drop(connection)

    async def close(self) -> None:
        self._generation += 1
        for connection in list(self._open):
            with suppress(Exception):
                # An orderly shutdown, unless it is in use.
                await connection.close(timeout=1.0)
            self._drop(connection)
        self._idle.clear()
