"""Fair queuing of the work that connections bring to an event loop.

    one iteration of the loop:  reads -> FREE_STARTS and SLICE_SECONDS of new work, then connections defer theirs
                                turns -> at most SLICE_SECONDS, round robin between addresses, then between connections

One read may contain thousands of requests. A connection starts one of them and waits here for its next turn with the
rest. Connections that wait for their first turn alternate with those that have a backlog, so that a single request does
not queue behind pipelined ones. Nothing is rejected here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("ostiary")

# A request takes about five iterations of the loop, and an iteration has up to two slices, so another user's request
# waits for about 20 ms. Long enough for some 30 ordinary requests, so that a busy worker rarely defers any.
SLICE_SECONDS = 0.002
# Starts before the clock is read, in one iteration or several: with little load the queue costs almost nothing.
FREE_STARTS = 8
# Maximum of unparsed bytes of all connections of a queue. Above it, connections reject instead of waiting.
MOST_HELD_BYTES = 32 * 1024 * 1024


class QueuedConnection(Protocol):
    """A connection with deferred work."""

    def run_turn(self) -> bool:
        """Start one piece of work. Return whether another one could start now."""

    def abort(self) -> None:
        """Close the connection: its turn raised an exception."""


class RoundRobin:
    """Connections in the order of their turns: each address has one turn per round."""

    __slots__ = ("_sources",)

    def __init__(self) -> None:
        self._sources: OrderedDict[str, deque[QueuedConnection]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._sources)

    def add(self, connection: QueuedConnection, source: str) -> None:
        waiting = self._sources.get(source)
        if waiting is None:
            self._sources[source] = deque((connection,))
        else:
            waiting.append(connection)

    def take(self) -> tuple[QueuedConnection, str]:
        """Return the connection whose turn it is, and its address."""
        source, waiting = self._sources.popitem(last=False)
        connection = waiting.popleft()
        if waiting:
            self._sources[source] = waiting
        return connection, source


class FairQueue:
    """The fair queue of one event loop. Connections maintain `held`, the number of bytes that are read but not parsed.

    A connection counts work that has just arrived in `starts` and starts it immediately, or calls `add` if there are
    more than `FREE_STARTS` and `has_time` is false.
    """

    __slots__ = ("_backlog", "_call_soon", "_is_scheduled", "_new", "_now", "_until", "held", "starts")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, now: Callable[[], float] = time.monotonic) -> None:
        self._call_soon = loop.call_soon
        self._now = now
        self._new, self._backlog = RoundRobin(), RoundRobin()
        # Whether this iteration is timed (until `_run`), and when its time is used up.
        self._is_scheduled = False
        self._until = 0.0
        self.held = 0
        self.starts = 0

    def may_start(self) -> bool:
        """Count work that has just arrived. Return whether it may start; if not, the connection calls `add`."""
        self.starts += 1
        return self.starts <= FREE_STARTS or self.has_time()

    def has_time(self) -> bool:
        """Whether this iteration has time for more new work."""
        if self._is_scheduled:
            return self._now() < self._until
        self._until = self._now() + SLICE_SECONDS
        self._schedule()
        return True

    def add(self, connection: QueuedConnection, source: str, *, has_backlog: bool = False) -> None:
        """Schedule `run_turn` of *connection*, which must not be queued already. *source* is its address."""
        (self._backlog if has_backlog else self._new).add(connection, source)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._call_soon(self._run)

    def _run(self) -> None:
        self.starts = 0
        until = self._now() + SLICE_SECONDS
        while self._new or self._backlog:
            # At least one of each, however long they take.
            if self._new:
                self._run_one(self._new)
            if self._backlog:
                self._run_one(self._backlog)
            if self._now() >= until:
                break
        if self._new or self._backlog:
            self._until = self._now() + SLICE_SECONDS
            self._schedule()
        else:
            self._is_scheduled = False

    def _run_one(self, queue: RoundRobin) -> None:
        connection, source = queue.take()
        try:
            has_more = connection.run_turn()
        except Exception as error:
            log.error("a connection failed", extra={"cause": type(error).__name__}, exc_info=error)
            connection.abort()
        else:
            if has_more:
                self._backlog.add(connection, source)
