"""Access to the file of a SQLite token store: synchronous reads, a writer thread, and change notification.

All errors become a `ProviderError` with the code token-store-unavailable.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from ostiary.core.platform.inotify import ATTRIBUTES, SELF_DELETED, SELF_MOVED, Inotify
from ostiary.errors import ProviderError
from ostiary_gateway.stores.sqlite import database_file
from ostiary_gateway.stores.sqlite.log import Row

# The writer thread: all queued work is committed in one transaction, with one fsync, while new work is queued.

# Maximum number of jobs per transaction.
BATCH = 256

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], object]


@dataclass(frozen=True, slots=True)
class _QueuedWork:
    work: Work
    result: asyncio.Future[Any]
    announced: bool = False


@dataclass(frozen=True, slots=True)
class _WorkResult:
    result: object = None
    error: Exception | None = None


class Writer:
    """A thread that owns *connection* and writes on behalf of one event loop. It calls *announce* after commits."""

    def __init__(self, connection: sqlite3.Connection, *, announce: Callable[[], None] = lambda: None) -> None:
        self._connection = connection
        self._announce = announce
        self._jobs: SimpleQueue[_QueuedWork | None] = SimpleQueue()
        # A daemon: acknowledged writes are on the disk, so the process may end without closing the store.
        self._thread = threading.Thread(target=self._run, name="ostiary-token-store", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[sqlite3.Connection], T], *, announced: bool = False) -> T:
        """Run *work* inside a transaction, atomically; return when it is on the disk.

        With *announced*, other processes are then notified. Cancelling the caller cancels neither.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put(_QueuedWork(work, result, announced))
        return await result

    async def close(self) -> None:
        """Finish the queued work, then close the connection."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    # In the thread.

    def _run(self) -> None:
        last = False
        while not last:
            batch, last = self._gather()
            if batch:
                _report(batch, self._commit(batch))
        self._connection.close()

    def _gather(self) -> tuple[list[_QueuedWork], bool]:
        """Return the queued jobs, waiting for at least one, and whether the writer was closed."""
        batch: list[_QueuedWork] = []
        job = self._jobs.get()
        with suppress(Empty):
            while job is not None:
                batch.append(job)
                if len(batch) == BATCH:
                    return batch, False
                job = self._jobs.get_nowait()
            return batch, True
        return batch, False

    def _commit(self, batch: Sequence[_QueuedWork]) -> list[_WorkResult]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            if len(batch) == 1:
                # No savepoint: there is no other work to protect, and every statement costs a switch of the GIL.
                outcomes = [_WorkResult(batch[0].work(self._connection))]
            else:
                outcomes = [self._do(job.work) for job in batch]
            self._connection.execute("COMMIT")
        except Exception as error:
            # Nothing of the batch is on the disk, so every job fails.
            self._roll_back()
            return [_WorkResult(error=error)] * len(batch)
        if any(job.announced for job in batch):
            self._announce()
        return outcomes

    def _do(self, work: Work) -> _WorkResult:
        self._connection.execute("SAVEPOINT work")
        try:
            outcome = _WorkResult(work(self._connection))
        except Exception as error:
            if not self._connection.in_transaction:
                # SQLite has rolled back the whole transaction, including the other jobs' writes.
                raise
            self._connection.execute("ROLLBACK TO work")
            outcome = _WorkResult(error=error)
        self._connection.execute("RELEASE work")
        return outcome

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")


def _report(batch: Sequence[_QueuedWork], outcomes: Sequence[_WorkResult]) -> None:
    def report() -> None:
        for job, outcome in zip(batch, outcomes, strict=True):
            if job.result.done():
                continue
            if outcome.error is None:
                job.result.set_result(outcome.result)
            else:
                job.result.set_exception(outcome.error)

    # The event loop may be closed already.
    with suppress(RuntimeError):
        batch[0].result.get_loop().call_soon_threadsafe(report)


# Change notification (Linux: inotify). A process that has written a revocation touches the file after the commit; the
# write itself would be noticed before other processes can see the commit. Without inotify the store polls.


def touch(path: str) -> None:
    """Wake every process that watches the file. Needs no disk space."""
    with suppress(OSError):
        os.utime(path)


class FileWatch:
    """Call *on_change* in the running event loop whenever the file is touched, moved or deleted, by any process.

    `open` returns None if inotify is unavailable or exhausted.
    """

    def __init__(self, inotify: Inotify, on_change: Callable[[], None]) -> None:
        self._inotify: Inotify | None = inotify
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(inotify.fileno(), self._read)

    @classmethod
    def open(cls, path: str, on_change: Callable[[], None]) -> FileWatch | None:
        inotify = _watch(path)
        return None if inotify is None else cls(inotify, on_change)

    def close(self) -> None:
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            # A closed loop has removed its readers already.
            with suppress(RuntimeError):
                self._loop.remove_reader(inotify.fileno())
            inotify.close()

    def _read(self) -> None:
        if self._inotify is not None:
            list(self._inotify.events())
            self._on_change()


def _watch(path: str) -> Inotify | None:
    inotify = Inotify.open()
    if inotify is not None and not inotify.watch(path, ATTRIBUTES | SELF_DELETED | SELF_MOVED):
        inotify.close()
        return None
    return inotify


# Minimum free disk space: ending a session needs some pages, too.
LEAST_FREE_BYTES = 128 * 1024
# A lookup blocks the event loop while it waits. In WAL mode, readers hardly ever wait.
READER_WAIT_SECONDS = 0.02


Arguments: TypeAlias = "Sequence[str | int | bytes]"


class StoreFile:
    """Reads and writes of one file. *on_write* is called after writes that other readers must see."""

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
        # Another process is just opening the file. The event loop must not wait for it; the thread may.
        return await self._write(lambda db: db.execute(query, arguments).fetchall())

    def _read_now(self, query: str, arguments: Arguments) -> list[Row] | None:
        """Return the rows, or None if the file is busy."""
        try:
            return self._open().reader.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            if database_file.is_busy(error):
                return None
            raise self._unavailable(str(error)) from error

    async def _read_aside(self, query: str, arguments: Arguments) -> list[Row]:
        """Run a query with a possibly large result in another thread, on a connection of its own."""
        return await self._look_aside(lambda db: db.execute(query, arguments).fetchall())

    async def _look_aside(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Like `_read_aside`, for several statements, which all see one snapshot."""
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

    # The file.

    def _open(self) -> _Opened:
        if self._failure is not None:
            raise self._failure.again()
        if self._opened is None:
            try:
                self._opened = _Opened(self.path)
            except database_file.NotOurs as error:
                raise self._unavailable(str(error), error.hint) from None
            except (sqlite3.Error, OSError) as error:
                # An OSError's text would repeat the path.
                cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
                raise self._unavailable(cause) from error
        return self._opened

    def _let_go(self) -> _Opened | None:
        """Fail all further reads and writes; the caller closes what was open."""
        opened, self._opened = self._opened, None
        self._failure = self._unavailable("it is closed")
        return opened

    def _check_file(self) -> None:
        """Raise if the file was removed or replaced: other processes would not see this process's writes."""
        if self._opened is not None and _identity(self.path) != self._opened.identity:
            hint = "restart what uses it; to end every session, use: ostiary-gateway sessions revoke --before now"
            self._failure = self._unavailable("the file was removed or replaced while it was in use", hint)
            raise self._failure.again()

    def _unavailable(self, cause: str, hint: str | None = None) -> ProviderError:
        summary = "the token store cannot be used"
        return ProviderError(summary, cause=cause, where=self.path, hint=hint, code="token-store-unavailable")

    def _check_space(self) -> None:
        try:
            free = os.statvfs(self.path)
        except OSError:
            # The write that follows reports the error.
            return
        if free.f_bavail * free.f_frsize < LEAST_FREE_BYTES:
            raise self._unavailable("the disk is full", "free disk space")


class _Opened:
    """The file, its connections and the writer thread."""

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
