"""Wait for work that another thread does: one future, awaited by threads and by event loops alike.

This is the whole difference between the sync and the async doors.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from ostiary.errors import OstiaryError

T = TypeVar("T")


def wait(future: Future[T]) -> T:
    """Block this thread until *future* is done; Ctrl-C still interrupts."""
    try:
        return future.result()
    except OstiaryError as error:
        # Every waiter gets an exception of its own: see `OstiaryError.again`.
        raise error.again() from error.__cause__


async def wait_async(future: Future[T]) -> T:
    """Await *future*. Cancelling the waiter does not cancel the work: others may wait for it too."""
    try:
        if _under_trio():
            return await _wait_in_trio(future)
        return await _wait_in_asyncio(future)
    except OstiaryError as error:
        raise error.again() from error.__cause__


def _under_trio() -> bool:
    if "trio" not in sys.modules:
        return False
    import trio.lowlevel

    return trio.lowlevel.in_trio_run()


async def _wait_in_asyncio(future: Future[T]) -> T:
    # Imported here: whoever waits in a thread does without it, and it takes long to load.
    import asyncio

    return await asyncio.shield(asyncio.wrap_future(future))


async def _wait_in_trio(future: Future[T]) -> T:
    import trio

    finished = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def wake(_: object) -> None:
        # The loop may be gone by then, and its waiters with it.
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(finished.set)

    future.add_done_callback(wake)
    await finished.wait()
    return future.result()
