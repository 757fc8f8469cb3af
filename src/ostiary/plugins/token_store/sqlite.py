"""Tokens in a SQLite file: embedded, durable, shared by the processes of one machine.

    store: {type: sqlite, path: ostiary.db}

    find -> the reading connection, at once, in the event loop's thread: a look-up takes microseconds
    add, renew, revoke, sweep -> a queue -> one thread -> one transaction for all that wait -> fsync -> all return

What is acknowledged has reached the disk (WAL, ``synchronous=FULL``). Other processes, the ``ostiary`` command among
them, use the same file; each follows the others' revocations in a log that every change of the file makes it read.
How rows look is told in `sqlite_schema`; the thread is in `sqlite_writer`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, Self, TypeVar
from weakref import WeakSet

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.records import check_record
from ostiary.core.tokens import check_revocation, check_storable
from ostiary.errors import LoginRefused, ProviderError
from ostiary.interfaces.token_store import Found, Revocation, RevocationKind, Session, TokenRecord
from ostiary.plugins.token_store import sqlite_schema as schema
from ostiary.plugins.token_store.sqlite_writer import Writer

# How often the other processes' revocations are looked for, and whether the file is still the one that was opened.
POLL_SECONDS = 0.01
POLLS_PER_FILE_CHECK = 50
SWEEP_BATCH = 500
# The event loop stands still while a look-up waits. Readers wait for next to nothing in WAL mode.
READER_WAIT_SECONDS = 0.02

T = TypeVar("T")


class SqliteTokenStore:
    """Implements `ostiary.interfaces.token_store.TokenStore` and its `RecordStore`.

    The file is opened when it is first needed: begin to use it after a fork, not before.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = os.fspath(path)
        self._clock = clock
        self._opened: _Opened | None = None
        self._subscribers: WeakSet[_Subscriber] = WeakSet()
        self._failure: ProviderError | None = None

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        path = fields.string("path")
        if not path:
            fields.problem("it is missing", "path", "name the file, as in: path: ostiary.db")
        return cls(context.path(path or "ostiary.db"), clock=context.clock)

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        check_storable(session)
        if not await self._write(lambda db: schema.add(db, session, tokens)):
            raise LoginRefused("this session has ended: sign in again", cause="it was revoked while it began")

    async def renew(self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord]) -> bool:
        check_storable(session)
        now = self._clock.now()
        renewed = await self._write(lambda db: schema.renew(db, spent, session, tokens, at=at, now=now))
        self._wake_subscribers()
        return renewed

    async def find(self, digest: bytes) -> Found | None:
        now = schema.micros(self._clock.now())
        arguments = (digest, now, now)
        rows = self._read_now(schema.FIND, arguments)
        if rows is None:
            rows = await self._read(schema.FIND, arguments)
        return self._decoded(schema.found, digest, rows[0]) if rows else None

    async def session(self, session_id: str) -> Session | None:
        rows = await self._read(schema.SESSION, (session_id, schema.micros(self._clock.now())))
        return self._decoded(schema.session, rows[0]) if rows else None

    async def sessions(
        self, *, username: str | None = None, group: str | None = None, limit: int = 1000
    ) -> list[Session]:
        query, arguments = schema.select_sessions(username, group, now=self._clock.now(), limit=limit)
        rows = await self._read_aside(query, arguments)
        return [self._decoded(schema.session, row) for row in rows]

    async def revoke(self, revocation: Revocation) -> int:
        check_revocation(revocation)
        now = self._clock.now()
        ended = await self._write(lambda db: schema.revoke(db, revocation, now=now))
        self._wake_subscribers()
        return ended

    def revocations(self) -> AsyncIterator[Revocation]:
        subscriber = _Subscriber(self, self._last_revocation())
        self._subscribers.add(subscriber)
        return subscriber

    async def sweep(self) -> int:
        """In small transactions, so that nobody who signs in meanwhile waits for long."""
        swept, now = 0, self._clock.now()
        while True:
            done, more = await self._write(lambda db: schema.sweep(db, now=now, limit=SWEEP_BATCH))
            swept += done
            if not more:
                return swept

    async def count(self) -> int:
        rows = await self._read_aside(schema.COUNT, ())
        return int(rows[0][0])

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        check_record(data, expires_at)
        now = self._clock.now()
        return await self._write(lambda db: schema.put_record(db, key_digest, data, expires_at=expires_at, now=now))

    async def find_record(self, key_digest: bytes) -> bytes | None:
        rows = await self._read(schema.RECORD, (key_digest, schema.micros(self._clock.now())))
        return bytes(rows[0][0]) if rows else None

    async def take_record(self, key_digest: bytes) -> bytes | None:
        now = self._clock.now()
        return await self._write(lambda db: schema.take_record(db, key_digest, now=now))

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        self._failure = self._unavailable("it is closed")
        self._wake_subscribers()
        if opened is not None:
            await opened.writer.close()
            opened.reader.close()

    # --- reading and writing ---

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._open().writer.run(work)
        except sqlite3.Error as error:
            raise self._unavailable(str(error)) from error

    async def _read(self, query: str, arguments: Sequence[Any]) -> list[Any]:
        rows = self._read_now(query, arguments)
        if rows is not None:
            return rows
        # Another process is opening the file this very moment. The loop does not wait for it; the thread may.
        return await self._write(lambda db: db.execute(query, arguments).fetchall())

    def _read_now(self, query: str, arguments: Sequence[Any]) -> list[Any] | None:
        """The rows, or None if the file is busy."""
        try:
            return self._open().reader.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            if schema.is_busy(error):
                return None
            raise self._unavailable(str(error)) from error

    async def _read_aside(self, query: str, arguments: Sequence[Any]) -> list[Any]:
        """Read what may be much, in another thread, with a connection for just that."""
        self._open()

        def read() -> list[Any]:
            with closing(schema.connect(self.path)) as connection:
                return connection.execute(query, arguments).fetchall()

        try:
            return await asyncio.to_thread(read)
        except sqlite3.Error as error:
            raise self._unavailable(str(error)) from error

    def _decoded(self, decode: Callable[..., T], *row: Any) -> T:
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
            except schema.NotOurs as error:
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

    # --- revocations ---

    def _last_revocation(self) -> int:
        try:
            return schema.last_revocation(self._open().reader)
        except sqlite3.Error as error:
            raise self._unavailable(str(error)) from error

    def _wake_subscribers(self) -> None:
        for subscriber in list(self._subscribers):
            subscriber.wake()

    @property
    def _is_closed(self) -> bool:
        return self._opened is None

    async def _changes(self) -> int:
        """A number that is another one after every change of the file by anybody."""
        return int((await self._read("PRAGMA data_version", ()))[0][0])

    async def _revocations_after(self, sequence: int) -> tuple[int, list[Revocation]]:
        rows = await self._read(schema.REVOCATIONS_AFTER, (sequence,))
        last = rows[-1][0] if rows else self._last_revocation()
        # Numbers have no gaps. Whoever slept for so long that some were swept away cannot know what they said.
        if last - sequence != len(rows):
            return last, [Revocation(RevocationKind.BEFORE, "", self._clock.now(), "ostiary: some were missed")]
        return last, [self._decoded(schema.revocation, row) for row in rows]


class _Opened:
    """The file, its connections and the writing thread."""

    def __init__(self, path: str) -> None:
        with schema.alone(path):
            schema.create_file(path)
            self.identity = _identity(path)
            with closing(schema.connect(path)) as connection:
                schema.prepare(connection)
        self.reader = schema.connect(path, wait_seconds=READER_WAIT_SECONDS)
        self.reader.execute("PRAGMA query_only = ON")
        self.writer = Writer(schema.connect(path))


class _Subscriber:
    """Follows the log of revocations. After an error it may be asked again, and has missed nothing."""

    def __init__(self, store: SqliteTokenStore, sequence: int) -> None:
        self._store = store
        self._sequence = sequence
        self._seen = -1
        self._news: list[Revocation] = []
        self._event = asyncio.Event()
        self._polls = 0

    def wake(self) -> None:
        self._event.set()

    def __aiter__(self) -> _Subscriber:
        return self

    async def __anext__(self) -> Revocation:
        while not self._news:
            if self._store._is_closed:
                raise StopAsyncIteration
            self._event.clear()
            changes = await self._store._changes()
            if changes != self._seen:
                self._sequence, news = await self._store._revocations_after(self._sequence)
                self._seen = changes
                self._news = news[::-1]
            if not self._news:
                await self._pause()
        return self._news.pop()

    async def _pause(self) -> None:
        self._polls += 1
        if self._polls % POLLS_PER_FILE_CHECK == 0:
            self._store._check_file()
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._event.wait()
        except TimeoutError:
            pass


def _identity(path: str) -> tuple[int, int] | None:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino
