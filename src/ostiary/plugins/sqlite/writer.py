"""The one thread that writes: all work that waits is committed in one transaction, with one fsync.

Called by the SQLite token store. While one transaction is written to the disk, work for the next one is queued.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

# More than this many pieces of work do not wait for each other.
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
    """Owns *connection* from now on; one event loop asks it to write. *announce* is called in the thread."""

    def __init__(self, connection: sqlite3.Connection, *, announce: Callable[[], None] = lambda: None) -> None:
        self._connection = connection
        self._announce = announce
        self._jobs: SimpleQueue[_QueuedWork | None] = SimpleQueue()
        # A daemon: what was acknowledged is on the disk, so a program may end without closing the store.
        self._thread = threading.Thread(target=self._run, name="ostiary-token-store", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[sqlite3.Connection], T], *, announced: bool = False) -> T:
        """Do *work* inside a transaction; returns when that is on the disk. All of the work counts, or none.

        With *announced*, other processes are notified then. Cancelling the caller undoes neither.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put(_QueuedWork(work, result, announced))
        return await result

    async def close(self) -> None:
        """Finish what was asked for before, then close the connection."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- in the thread ---

    def _run(self) -> None:
        last = False
        while not last:
            batch, last = self._gather()
            if batch:
                _report(batch, self._commit(batch))
        self._connection.close()

    def _gather(self) -> tuple[list[_QueuedWork], bool]:
        """The work that waits, at least one piece; and whether it is the last."""
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
                # No savepoint: there is no other work to protect, and every statement costs a turn of the GIL.
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
                # SQLite has undone the whole transaction by itself, with what the others wrote in it.
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

    # The event loop may be closed by then, and its callers gone.
    with suppress(RuntimeError):
        batch[0].result.get_loop().call_soon_threadsafe(report)
