"""Bounded, expiring cache. One caller fills an entry, concurrent callers wait for it.

    get (synchronous)  ->  same call in flight? then wait  ->  call the producer, detached from callers  ->  store

The key must contain everything that the value depends on. Errors are never cached. An entry's lifetime starts when its
producer is called, so that the bound on staleness is exact.

An instance belongs to one event loop and is not thread-safe. `core.single_flight` is the equivalent for threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import OstiaryError, ProviderError

ENTRIES = 65_536
# Divisor: one owner may use this part of a cache, so that one user's entries evict only that user's entries.
OWNER_PART = 16
KEY_BYTES = 4096
# Approximate overhead of an entry beyond its key and value.
ENTRY_BYTES = 512
# The producer runs detached from its callers, so it needs its own timeout.
TIME_LIMIT_SECONDS = 30.0

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[V]):
    value: V
    expires_at: float


class Cache(Generic[K, V]):
    """Values under keys, each for at most *seconds*. A value is never None.

    At most *entries* are cached, at most *share* of them for one owner, and none whose key is longer than *key_bytes*.
    The oldest are evicted first. *key_size* measures keys that are not text or tuples of text, and *value_size* values
    that take more than a few bytes. *size* limits the total bytes, *share_size* those of one owner.
    """

    def __init__(
        self,
        *,
        seconds: float,
        clock: Clock = SYSTEM_CLOCK,
        entries: int = ENTRIES,
        share: int | None = None,
        key_bytes: int = KEY_BYTES,
        key_size: Callable[[K], int] | None = None,
        value_size: Callable[[V], int] | None = None,
        size: float = float("inf"),
        share_size: float = float("inf"),
        time_limit: float = TIME_LIMIT_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._monotonic = clock.monotonic
        self._key_bytes = key_bytes
        self._key_size = key_size or size_of
        self._value_size = value_size
        self._time_limit = time_limit
        share = max(1, entries // OWNER_PART) if share is None else share
        self._entries: BoundedByOwner[K, _Entry[V]] = BoundedByOwner(size, share_size, entries=entries, share=share)
        self._flights: dict[K, asyncio.Task[V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of *key* unless it has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._monotonic() < entry.expires_at:
            return entry.value
        self._entries.forget(key)
        return None

    def put(self, key: K, value: V, *, owner: Hashable = None, seconds: float | None = None) -> bool:
        """Cache *value*; returns whether it was stored.

        It must be current: the caller did not wait since it was determined.
        """
        return self._keep(key, value, owner, self._expiry(seconds))

    async def fill(
        self, key: K, producer: Callable[[], Awaitable[V]], *, owner: Hashable = None, seconds: float | None = None
    ) -> V:
        """Return the cached value of *key*, or the result of *producer*. Concurrent calls for one key share one call.

        Cancelling a caller does not affect the others. If the producer raises, every waiter gets the exception and
        nothing is cached.
        """
        value = self.get(key)
        if value is not None:
            return value
        flight = self._flights.get(key)
        if flight is None:
            flight = self._start(key, producer, owner, self._expiry(seconds))
        try:
            return await asyncio.shield(flight)
        except OstiaryError as error:
            # Every waiter gets its own exception: see `OstiaryError.again`.
            raise error.again() from error.__cause__
        except asyncio.CancelledError:
            if _is_cancelled_itself() or not flight.cancelled():
                raise
        # The producer was cancelled, not this caller, so the caller must not end with CancelledError.
        raise ProviderError("the call was cancelled before it finished", code="provider-failed")

    def drop(self, matches: Callable[[K, V], bool] | None = None) -> int:
        """Evict the entries that *matches* selects, or all; returns how many.

        Calls in flight may be based on the old state: their waiters still get the results, but these are not cached and
        no new caller joins them.
        """
        self._flights.clear()
        if matches is None:
            dropped = len(self._entries)
            self._entries.clear()
            return dropped
        keys = [key for key, entry in self._entries.items() if matches(key, entry.value)]
        for key in keys:
            self._entries.forget(key)
        return len(keys)

    # --- calls in flight ---

    def _start(
        self, key: K, producer: Callable[[], Awaitable[V]], owner: Hashable, expires_at: float
    ) -> asyncio.Task[V]:
        # A separate task: in the first caller's task, cancelling that caller would cancel the call for all.
        flight = asyncio.ensure_future(self._ask(producer))
        self._flights[key] = flight
        flight.add_done_callback(lambda done: self._finish(key, done, owner, expires_at))
        return flight

    async def _ask(self, producer: Callable[[], Awaitable[V]]) -> V:
        async with asyncio.timeout(self._time_limit):
            return await producer()

    def _finish(self, key: K, flight: asyncio.Task[V], owner: Hashable, expires_at: float) -> None:
        # Always retrieve the exception, or asyncio logs it as never retrieved.
        failed = flight.cancelled() or flight.exception() is not None
        if self._flights.get(key) is not flight:
            return
        del self._flights[key]
        if not failed:
            self._keep(key, flight.result(), owner, expires_at)

    # --- entries ---

    def _expiry(self, seconds: float | None) -> float:
        return self._monotonic() + (self._seconds if seconds is None else seconds)

    def _keep(self, key: K, value: V, owner: Hashable, expires_at: float) -> bool:
        size = self._key_size(key)
        if self._monotonic() >= expires_at or size > self._key_bytes:
            self._entries.forget(key)
            return False
        if self._value_size is not None:
            size += self._value_size(value)
        return self._entries.keep(key, _Entry(value, expires_at), owner=owner, size=size + ENTRY_BYTES)


def size_of(key: Hashable) -> int:
    """Return the approximate size of *key* in bytes. Anything but text and tuples counts as one machine word."""
    if isinstance(key, (str, bytes)):
        return len(key)
    if isinstance(key, (tuple, frozenset)):
        return sum(map(size_of, key)) + len(key)
    return 8


def _is_cancelled_itself() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
