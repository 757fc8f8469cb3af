"""Tokens in a SQLite file: embedded, durable, shared by the processes of one machine.

    store: {type: sqlite, path: ostiary.db}

    find -> the reading connection, at once, in the event loop's thread: a look-up takes microseconds
    add, renew, revoke, sweep -> a queue -> one thread -> one transaction for all that wait -> fsync -> all return

What is acknowledged has reached the disk (WAL, ``synchronous=FULL``). Other processes, the ``ostiary`` command among
them, use the same file. Each reads the log of revocations: whoever adds to it touches the file, which wakes the others
(`file_watch`). How rows look is told in `schema` and `log`, what changes them in `changes`; the thread is in `writer`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import Self, TypeAlias, TypeVar

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.core.tokens import check_revocation, check_storable
from ostiary.core.tokens.records import check_record
from ostiary.errors import LoginRefused, ProviderError
from ostiary.interfaces.token_store import Found, Revocation, RevocationBatch, Session, TokenRecord
from ostiary.plugins.sqlite import changes, database_file, log, schema
from ostiary.plugins.sqlite.file_watch import FileWatch, touch
from ostiary.plugins.sqlite.log import Row
from ostiary.plugins.sqlite.settings import SqliteSettings
from ostiary.plugins.sqlite.writer import Writer

# How often to poll for revocations of other processes where the file cannot be watched.
UNWATCHED_SECONDS = 0.25
# A store with less space than this left is called full: ending a session takes some pages, too.
LEAST_FREE_BYTES = 128 * 1024
SWEEP_BATCH = 500
# The event loop stands still while a look-up waits. Readers wait for next to nothing in WAL mode.
READER_WAIT_SECONDS = 0.02

T = TypeVar("T")
Arguments: TypeAlias = "Sequence[str | int | bytes]"


class SqliteTokenStore:
    """Implements `ostiary.interfaces.token_store.TokenStore` and its `RecordStore`.

    The file is opened when it is first needed: begin to use it after a fork, not before.
    """

    shared_between_processes = True
    survives_restart = True
    path: str

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = os.fspath(path)
        self._clock = clock
        self._opened: _Opened | None = None
        self._failure: ProviderError | None = None
        self._seen = log.Seen()
        self._watch: FileWatch | None = None
        self._waiting: set[asyncio.Event] = set()

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        return cls(read_settings(SqliteSettings, fields, context.directory).path, clock=context.clock)

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        check_storable(session)
        now = self._clock.now()
        if not await self._write(lambda db: changes.add(db, session, tokens, now=now, seen=self._seen)):
            raise LoginRefused(
                "this session has expired or was revoked: sign in again", cause="it was revoked during the sign-in"
            )

    async def renew(
        self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord], since: int | None = None
    ) -> bool:
        check_storable(session)
        work = partial(
            changes.renew,
            spent=spent,
            renewed=session,
            tokens=tokens,
            at=at,
            now=self._clock.now(),
            seen=self._seen,
            since=since,
        )
        return await self._write(work, announced=True)

    async def find(self, digest: bytes) -> Found | None:
        rows = self._read_now(schema.FIND, (digest,))
        if rows is None:
            rows = await self._read(schema.FIND, (digest,))
        now = self._seen.at(self._clock.now(), *schema.clock_of(rows[0])) if rows else 0
        return self._decode(schema.decode_token, digest, rows[0]) if rows and schema.is_alive(rows[0], now) else None

    async def session(self, session_id: str) -> Session | None:
        rows = await self._read(schema.SESSION, (session_id, log.micros(self._clock.now())))
        return self._decode(schema.decode_session, rows[0]) if rows else None

    async def sessions(
        self, *, username: str | None = None, group: str | None = None, limit: int = 1000
    ) -> list[Session]:
        query, arguments = schema.select_sessions(username, group, now=self._clock.now(), limit=limit)
        rows = await self._read_aside(query, arguments)
        return [self._decode(schema.decode_session, row) for row in rows]

    async def revoke(self, revocation: Revocation) -> int:
        now = self._clock.now()
        check_revocation(revocation, now)
        return await self._write(lambda db: changes.revoke(db, revocation, now=now), announced=True)

    async def marks(self) -> list[Revocation]:
        rows = await self._read_aside(log.MARKS, ())
        return [self._decode(log.decode_revocation, row) for row in rows]

    async def undo(self, sequence: int) -> bool:
        return await self._write(lambda db: log.undo(db, sequence))

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        self._check_file()
        if sequence is None:
            return RevocationBatch(int((await self._read(log.HEAD, ()))[0][0]))
        return self._decode(log.batch, await self._read(log.AFTER, (sequence,)), sequence)

    async def wait_for_revocations(self, after: int, seconds: float) -> None:
        watched = self._is_watched()
        woken = asyncio.Event()
        self._waiting.add(woken)
        try:
            # Checked after the watch is set: a revocation written before it would wake nobody.
            if (await self.revocations_after(None)).head == after:
                async with asyncio.timeout(seconds if watched else min(seconds, UNWATCHED_SECONDS)):
                    await woken.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(woken)

    async def heartbeat(self) -> None:
        self._check_file()
        self._check_space()
        now = self._clock.now()
        await self._write(lambda db: changes.heartbeat(db, now=now, seen=self._seen), announced=True)

    async def sweep(self) -> int:
        """In small transactions, so that concurrent sign-ins do not wait for long."""
        swept, now = 0, self._clock.now()
        while True:
            deleted, more = await self._write(lambda db: changes.sweep(db, now=now, limit=SWEEP_BATCH))
            swept += deleted
            if not more:
                return swept

    async def count(self) -> int:
        rows = await self._read_aside(schema.COUNT, ())
        return int(rows[0][0])

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        check_record(data, expires_at)
        now = self._clock.now()
        return await self._write(lambda db: changes.put_record(db, key_digest, data, expires_at=expires_at, now=now))

    async def find_record(self, key_digest: bytes) -> bytes | None:
        rows = await self._read(schema.RECORD, (key_digest, log.micros(self._clock.now())))
        return bytes(rows[0][0]) if rows else None

    async def take_record(self, key_digest: bytes) -> bytes | None:
        now = self._clock.now()
        return await self._write(lambda db: changes.take_record(db, key_digest, now=now))

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        self._failure = self._unavailable("it is closed")
        self._wake()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        if opened is not None:
            await opened.writer.close()
            opened.reader.close()

    # --- reading and writing ---

    async def _write(self, work: Callable[[sqlite3.Connection], T], *, announced: bool = False) -> T:
        try:
            result = await self._open().writer.run(work, announced=announced)
        except sqlite3.Error as error:
            raise self._unavailable(str(error)) from error
        if announced:
            self._wake()
        return result

    async def _read(self, query: str, arguments: Arguments) -> list[Row]:
        rows = self._read_now(query, arguments)
        if rows is not None:
            return rows
        # Another process is opening the file this very moment. The loop does not wait for it; the thread may.
        return await self._write(lambda db: db.execute(query, arguments).fetchall())

    def _read_now(self, query: str, arguments: Arguments) -> list[Row] | None:
        """The rows, or None if the file is busy."""
        try:
            return self._open().reader.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            if database_file.is_busy(error):
                return None
            raise self._unavailable(str(error)) from error

    async def _read_aside(self, query: str, arguments: Arguments) -> list[Row]:
        """Read what may be much, in another thread, with a connection for just that."""
        self._open()

        def read() -> list[Row]:
            with closing(database_file.connect(self.path)) as connection:
                return connection.execute(query, arguments).fetchall()

        try:
            return await asyncio.to_thread(read)
        except sqlite3.Error as error:
            raise self._unavailable(str(error)) from error

    def _decode(self, decode: Callable[..., T], *row: object) -> T:
        try:
            return decode(*row)
        except (ValueError, TypeError, OverflowError):
            # The decoder's exception would quote the row.
            cause = "a row cannot be understood"
        raise self._unavailable(cause)

    # --- the file ---

    def _open(self) -> _Opened:
        if self._failure is not None:
            raise self._failure.again()
        if self._opened is None:
            try:
                self._opened = _Opened(self.path)
            except database_file.NotOurs as error:
                raise self._unavailable(str(error), error.hint) from None
            except (sqlite3.Error, OSError) as error:
                # An OSError's text would name the path once more.
                cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
                raise self._unavailable(cause) from error
        return self._opened

    def _check_file(self) -> None:
        """Raise if the file was removed or replaced: we would go on alone with one that nobody else sees."""
        if self._opened is not None and _identity(self.path) != self._opened.identity:
            hint = "restart what uses it; to end every session, use: ostiary sessions revoke --before now"
            self._failure = self._unavailable("the file was removed or replaced while it was in use", hint)
            raise self._failure.again()

    def _unavailable(self, cause: str, hint: str | None = None) -> ProviderError:
        summary = "the token store cannot be used"
        return ProviderError(summary, cause=cause, where=self.path, hint=hint, code="token-store-unavailable")

    def _check_space(self) -> None:
        try:
            free = os.statvfs(self.path)
        except OSError:
            # The write that follows says what is wrong.
            return
        if free.f_bavail * free.f_frsize < LEAST_FREE_BYTES:
            raise self._unavailable("the disk is full", "free disk space")

    # --- waiting for revocations ---

    def _is_watched(self) -> bool:
        if self._watch is None:
            self._open()
            self._watch = FileWatch.open(self.path, self._wake)
        return self._watch is not None

    def _wake(self) -> None:
        for woken in self._waiting:
            woken.set()


class _Opened:
    """The file, its connections and the writing thread."""

    def __init__(self, path: str) -> None:
        with database_file.alone(path):
            database_file.create_file(path)
            self.identity = _identity(path)
            with closing(database_file.connect(path)) as connection:
                database_file.prepare(connection)
        self.reader = database_file.connect(path, wait_seconds=READER_WAIT_SECONDS)
        self.reader.execute("PRAGMA query_only = ON")
        self.writer = Writer(database_file.connect(path), announce=lambda: touch(path))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
