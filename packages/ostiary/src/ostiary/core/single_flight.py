"""Runs work in a thread of its own, at most once at a time per key, while any number of callers wait for it.

    is a run under way for this key?  -> wait for the same future
    else                              -> start a thread; settle the outcome with the lock held; wake all waiters

Both doors that run programs use this: the authenticator of an exec plugin and the cache of a credential
provider. Whatever goes wrong, starting the thread included, is the outcome of the run and reaches every waiter.
A future that nobody completes would make every later caller wait for ever.

`core.caching.cache` also asks once for many callers, but with a task of its event loop: its work is a coroutine, which
a thread of its own could not await, and one loop needs no lock. So the two share this rule and not the code.
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
    """The runs that are under way, by key. *F* is the kind of future that callers wait for.

    The owner takes `lock` while it decides, calls `running` and `start` with it held, and keeps its own state
    under the same lock. So nobody sees a run that is over together with a state from before it.
    """

    def __init__(self, *, thread_name: str) -> None:
        self.lock = threading.RLock()
        self._thread_name = thread_name
        self._running: dict[Hashable, F] = {}
        _living.add(self)

    def running(self, key: Hashable = None) -> F | None:
        """The run under way for *key*. Call it with the lock held."""
        return self._running.get(key)

    def start(self, future: F, work: Callable[[], Any], *, settle: Settle, key: Hashable = None) -> F:
        """Run *work* in a new thread and complete *future* with its outcome. Call it with the lock held.

        *settle* is called with the lock held, before any waiter wakes: with the result, or with None and the
        exception. If it raises, that is the outcome.
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
            # After a fork the table is another one, and the key may belong to a run of the child.
            if self._running.get(key) is future:
                del self._running[key]
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _forget_the_parent(self) -> None:
        """After a fork: the threads stayed with the parent, and its lock may be held for ever."""
        self.lock = threading.RLock()
        self._running = {}


def in_thread(work: Callable[[], T], *, name: str) -> Future[T]:
    """One run of *work* that is not shared."""
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
    """Start a daemon thread: a program that ends does not wait for a plugin. core.process ends the plugin itself.

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
    """Done when *future* is, whatever came of it."""
    landed: Future[None] = Future()
    future.add_done_callback(lambda _: landed.set_result(None))
    return landed


_living: weakref.WeakSet[SingleFlight[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for flights in list(_living):
        flights._forget_the_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

# Wait for work that another thread does: one future, awaited by threads and by event loops alike.
#
# This is the whole difference between the sync and the async doors.


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
