"""Runs work in a thread, at most once at a time per key, while any number of callers wait for the result.

    is a run in progress for this key?  -> wait for the same future
    else                                -> start a thread; settle the outcome with the lock held; wake all waiters

Used by the exec plugin authenticator and the credential provider cache. Any failure, including one to start the thread,
is the outcome of the run and reaches every waiter. A future that is never completed would block every later caller.
`core.cache` does the same with tasks of one event loop, where the work is a coroutine and no lock is needed.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ostiary.errors import CredentialError, OstiaryError

THREAD_LIMIT_REACHED = "thread-limit-reached"

T = TypeVar("T")
F = TypeVar("F", bound="Future[Any]")
Settle = Callable[[Any, BaseException | None], None]


class SingleFlight(Generic[F]):
    """The runs in progress, by key. *F* is the type of future that callers wait for.

    The owner takes `lock`, calls `running` and `start` with it held, and guards its own state with it. So a finished
    run is never observed together with a state from before it.
    """

    def __init__(self, *, thread_name: str) -> None:
        self.lock = threading.RLock()
        self._thread_name = thread_name
        self._running: dict[Hashable, F] = {}
        _living.add(self)

    def running(self, key: Hashable = None) -> F | None:
        """Return the run in progress for *key*. The caller holds the lock."""
        return self._running.get(key)

    def start(self, future: F, work: Callable[[], Any], *, settle: Settle, key: Hashable = None) -> F:
        """Run *work* in a new thread and complete *future* with its outcome. The caller holds the lock.

        *settle* is called with the lock held, before any waiter wakes: with the result, or with None and the exception.
        If it raises, that is the outcome.
        """
        self._running[key] = future

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            self._finish(key, future, result, error, settle)

        try:
            start_thread(run, name=self._thread_name)
        except CredentialError as error:
            self._finish(key, future, None, error, settle)
        return future

    def _finish(self, key: Hashable, future: F, result: Any, error: BaseException | None, settle: Settle) -> None:
        with self.lock:
            try:
                settle(result, error)
            except BaseException as raised:
                error = raised
            # After a fork the table is a new one, and the key may belong to a run of the child.
            if self._running.get(key) is future:
                del self._running[key]
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _forget_the_parent(self) -> None:
        """Reset after a fork: the threads exist only in the parent, and its lock may be held for ever."""
        self.lock = threading.RLock()
        self._running = {}


def in_thread(work: Callable[[], T], *, name: str) -> Future[T]:
    """Run *work* once, without sharing."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    try:
        start_thread(run, name=name)
    except CredentialError as error:
        future.set_exception(error)
    return future


def start_thread(target: Callable[[], None], *, name: str) -> None:
    """Start a daemon thread, so that exiting does not wait for a plugin. `core.process` ends the plugin itself.

    Raises `CredentialError` when the system has no thread or memory left.
    """
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except (RuntimeError, MemoryError):
        raise CredentialError(
            "no credential could be obtained",
            cause="a new thread cannot be started: this process or this machine has reached its limit",
            hint="raise the limit on threads (ulimit -u, or pids.max of the container), or run fewer at a time",
            code=THREAD_LIMIT_REACHED,
        ) from None


def landing(future: Future[T]) -> Future[None]:
    """Return a future that is done when *future* is, whatever its outcome."""
    landed: Future[None] = Future()
    future.add_done_callback(lambda _: landed.set_result(None))
    return landed


_living: weakref.WeakSet[SingleFlight[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for flights in list(_living):
        flights._forget_the_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

# Waiting for work of another thread, by threads and by event loops (asyncio and trio).


def wait(future: Future[T]) -> T:
    """Block this thread until *future* is done; Ctrl-C still interrupts."""
    try:
        return future.result()
    except OstiaryError as error:
        # Every waiter gets its own exception: see `OstiaryError.again`.
        raise error.again() from error.__cause__


async def wait_async(future: Future[T]) -> T:
    """Await *future*. Cancelling the waiter does not cancel the work, because others may wait for it too."""
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
    # Imported here: slow to import, and not needed to wait in a thread.
    import asyncio

    return await asyncio.shield(asyncio.wrap_future(future))


async def _wait_in_trio(future: Future[T]) -> T:
    import trio

    finished = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def wake(_: object) -> None:
        # The loop and its waiters may be gone by then.
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(finished.set)

    future.add_done_callback(wake)
    await finished.wait()
    return future.result()
