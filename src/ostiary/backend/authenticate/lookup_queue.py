"""Turns for tokens that must be looked up at the gateway: fair between client addresses.

    an address may have half of the slots  ->  a free slot at once, or the queue of the address  ->  one turn each

A flood of unknown tokens fills the queue of one address. Tokens from other addresses wait for one
look-up at most, and those from the same address in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ostiary.errors import ProviderError

# How many wait in all, each in about two kilobytes, and for how long.
MOST_WAITING = 4_096
LONGEST_WAIT = 20.0


class LookupQueue:
    """*slots* look-ups at a time, at most half of them for one key. One event loop uses it."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._most = max(slots // 2, 1)
        self._taken: Counter[str] = Counter()
        # By key, in the order of their turns.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._length = 0

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Hold a slot. Raises `ProviderError` if too many wait, most of them with this key, or for too long."""
        if self._free and self._taken[key] < self._most:
            self._take(key)
        else:
            await self._wait(key)
        try:
            yield
        finally:
            self._release(key)

    async def _wait(self, key: str) -> None:
        if self._length >= MOST_WAITING:
            self._drop_one_for(key)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(waiter)
        self._length += 1
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # Its turn had come at the same moment.
                self._release(key)
            elif key in self._waiting and waiter in self._waiting[key]:
                self._remove(key, waiter)
            if isinstance(error, TimeoutError):
                raise _too_many(f"its turn did not come within {LONGEST_WAIT:g} seconds") from None
            raise

    def _drop_one_for(self, key: str) -> None:
        """Make room for *key* where the queue is longest. Raises `ProviderError` if that is its own."""
        longest = max(self._waiting, key=lambda each: len(self._waiting[each]))
        if len(self._waiting.get(key, ())) >= len(self._waiting[longest]):
            raise _too_many("too many tokens from this address wait")
        waiter = self._waiting[longest][-1]
        self._remove(longest, waiter)
        waiter.set_exception(_too_many("too many tokens from this address wait"))

    def _remove(self, key: str, waiter: asyncio.Future[None]) -> None:
        queue = self._waiting[key]
        queue.remove(waiter)
        self._length -= 1
        if not queue:
            del self._waiting[key]

    def _take(self, key: str) -> None:
        self._free -= 1
        self._taken[key] += 1

    def _release(self, key: str) -> None:
        self._free += 1
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
        # The first key that may have a slot. The few that have their half already are passed over.
        turn = next((each for each in self._waiting if self._taken[each] < self._most), None)
        if turn is None:
            return
        queue = self._waiting.pop(turn)
        waiter = queue.popleft()
        self._length -= 1
        if queue:
            # Behind the others.
            self._waiting[turn] = queue
        self._take(turn)
        waiter.set_result(None)


def _too_many(cause: str) -> ProviderError:
    return ProviderError("too many unknown tokens have to be looked up", cause=cause)
