"""The file of a SQLite token store, as the store uses it: opened at the first need, read at once, written by a thread.

The base of `ostiary.plugins.sqlite.token_store`. Whatever goes wrong here is "the token store cannot be used".
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeAlias, TypeVar

from ostiary.errors import ProviderError
from ostiary.plugins.sqlite import database_file
from ostiary.plugins.sqlite.file_watch import touch
from ostiary.plugins.sqlite.log import Row
from ostiary.plugins.sqlite.writer import Writer

# A store with less space than this left is called full: ending a session takes some pages, too.
LEAST_FREE_BYTES = 128 * 1024
# The event loop stands still while a look-up waits. Readers wait for next to nothing in WAL mode.
READER_WAIT_SECONDS = 0.02

T = TypeVar("T")
Arguments: TypeAlias = "Sequence[str | int | bytes]"


class StoreFile:
    """Reads and writes of one file. *on_write* is called after what other readers must learn of."""

    path: str

    def __init__(self, path: str | os.PathLike[str], on_write: Callable[[], None]) -> None:
        self.path = os.fspath(path)
        self._on_write = on_write
        self._opened: _Opened | None = None
        self._failure: ProviderError | None = None

    async def _write(self, work: Callable[[sqlite3.Connection], T], *, announced: bool = False) -> T:
        try:
            result = await self._open().writer.run(work, announced=announced)
        except sqlite3.Error as error:
            raise self._unavailable(str(error)) from error
        if announced:
            self._on_write()
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
        return await self._look_aside(lambda db: db.execute(query, arguments).fetchall())

    async def _look_aside(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The same for several statements, which all see the file as it is at one moment."""
        self._open()

        def read() -> T:
            with closing(database_file.connect(self.path)) as connection:
                connection.execute("PRAGMA query_only = ON")
                connection.execute("BEGIN")
                return work(connection)

        try:
            return await asyncio.to_thread(read)
        except sqlite3.Error as error:
            raise self._unavailable(str(error)) from error

    def _decode(self, decode: Callable[..., T], *row: object) -> T:
        try:
            return decode(*row)
        except (ValueError, TypeError, OverflowError, KeyError):
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

    def _let_go(self) -> _Opened | None:
        """Nothing can be read or written from now on; the caller closes what was open."""
        opened, self._opened = self._opened, None
        self._failure = self._unavailable("it is closed")
        return opened

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

    async def close(self) -> None:
        await self.writer.close()
        self.reader.close()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
