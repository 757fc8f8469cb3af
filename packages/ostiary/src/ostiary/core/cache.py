"""Remembers answers: bounded, expiring; one caller fills it, the others wait.

    get (at once)  ->  is somebody asking already? then wait  ->  ask, detached from every caller  ->  keep

Called by the gateway for decisions and whatever else is dear to ask. The key must hold everything that the answer
depends on. Errors are never kept. An answer is as old as its question: its time runs from when it was asked for,
so that the bound on staleness is exact.

One event loop uses an instance; nothing here is safe between threads. `core.caching.flight` is the form for threads.
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
# One owner may hold this part of a cache: one user's entries evict only that user's entries.
OWNER_PART = 16
KEY_BYTES = 4096
# What an entry takes beside its key and its value, about.
ENTRY_BYTES = 512
# Detached from its callers, a question that nobody answers would otherwise stay for ever.
TIME_LIMIT_SECONDS = 30.0

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[V]):
    value: V
    expires_at: float


class Cache(Generic[K, V]):
    """Values under keys, each for *seconds* at most. A value is never None.

    At most *entries* are kept, at most *share* of them for one owner, and none whose key is longer than
    *key_bytes*; the oldest make room. *key_size* measures keys that are other than text and tuples of it, and
    *value_size* values that take more than a few bytes. *size* bytes are kept in all, *share_size* for one owner.
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
        """What is kept under *key*, if its time is not over."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._monotonic() < entry.expires_at:
            return entry.value
        self._entries.forget(key)
        return None

    def put(self, key: K, value: V, *, owner: Hashable = None, seconds: float | None = None) -> bool:
        """Keep *value*; says whether it was kept. It must have been found out just now, without waiting."""
        return self._keep(key, value, owner, self._expiry(seconds))

    async def fill(
        self, key: K, producer: Callable[[], Awaitable[V]], *, owner: Hashable = None, seconds: float | None = None
    ) -> V:
        """What is kept under *key*, or what *producer* says; equal questions at the same time are asked once.

        A caller that is cancelled stops waiting, and the others still get their answer. What the producer raises,
        everyone who waits gets, and it is not kept.
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
            # Every waiter gets an exception of its own: see `OstiaryError.again`.
            raise error.again() from error.__cause__
        except asyncio.CancelledError:
            if _is_cancelled_itself() or not flight.cancelled():
                raise
        # Nobody cancelled this caller, so nobody would expect it to end as though somebody had.
        raise ProviderError("the call was cancelled before it finished", code="provider-failed")

    def drop(self, matches: Callable[[K, V], bool] | None = None) -> int:
        """Forget what *matches*, or everything; says how many.

        Questions under way may have been asked of what has just changed: those who wait get their answers, which
        are not kept, and nobody joins them any more.
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

    # --- questions under way ---

    def _start(
        self, key: K, producer: Callable[[], Awaitable[V]], owner: Hashable, expires_at: float
    ) -> asyncio.Task[V]:
        # A task of its own: were it the first caller's, that caller's cancellation would be everybody's.
        flight = asyncio.ensure_future(self._ask(producer))
        self._flights[key] = flight
        flight.add_done_callback(lambda done: self._finish(key, done, owner, expires_at))
        return flight

    async def _ask(self, producer: Callable[[], Awaitable[V]]) -> V:
        async with asyncio.timeout(self._time_limit):
            return await producer()

    def _finish(self, key: K, flight: asyncio.Task[V], owner: Hashable, expires_at: float) -> None:
        # Looked at in any case: an exception that nobody waits for any more is no news to anyone.
        failed = flight.cancelled() or flight.exception() is not None
        if self._flights.get(key) is not flight:
            return
        del self._flights[key]
        if not failed:
            self._keep(key, flight.result(), owner, expires_at)

    # --- what is kept ---

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
    """About how many bytes *key* holds. What is neither text nor tuple counts as one machine word."""
    if isinstance(key, (str, bytes)):
        return len(key)
    if isinstance(key, (tuple, frozenset)):
        return sum(map(size_of, key)) + len(key)
    return 8


def _is_cancelled_itself() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
