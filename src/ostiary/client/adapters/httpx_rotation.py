"""Keeps one transport of httpx per TLS context, and retires the old one when the context is replaced.

Called by the `httpx` adapter for each request. A client certificate or the authorities may change at any time; requests
and answers that are under way on the old transport are left to end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from ostiary.core.tls import SealedContext

# A transport of the library, threaded or async. Its idle connections are closed as it is.
T = TypeVar("T")


class ContextTransport(Generic[T]):
    """A transport of the library, the TLS context it was made for, and how much is under way on it."""

    __slots__ = ("answers", "context", "requests", "transport")

    def __init__(self, context: SealedContext | None, transport: T) -> None:
        self.context = context
        self.transport = transport
        self.requests = 0
        self.answers = 0


class TransportRotation(Generic[T]):
    """The transport for new requests, and older ones until their last answer has been read.

    It decides and never waits: what there is to close is returned, because that is done in one way by
    the threaded transport and in another by the async one.
    """

    def __init__(self, context: Callable[[], SealedContext | None], make: Callable[[SealedContext | None], T]) -> None:
        self._context = context
        self._make = make
        self._lock = threading.Lock()
        self._current: ContextTransport[T] | None = None
        self._older: list[ContextTransport[T]] = []

    def request(self) -> tuple[ContextTransport[T], list[T]]:
        """The transport to send a request on, and what to close."""
        with self._lock:
            # Asked with the lock held, or a thread with yesterday's answer could undo a rotation.
            context = self._context()
            entry, before = self._current, self._current
            if entry is None or entry.context is not context:
                entry = self._current = ContextTransport(context, self._make(context))
                self._older += [before] if before is not None else []
            entry.requests += 1
            return entry, self._closable(before)

    def count_answer(self, entry: ContextTransport[T]) -> list[T]:
        return self._count(entry, requests=-1, answers=+1)

    def count_failure(self, entry: ContextTransport[T]) -> list[T]:
        return self._count(entry, requests=-1)

    def count_end(self, entry: ContextTransport[T]) -> list[T]:
        return self._count(entry, answers=-1)

    def close(self) -> list[T]:
        with self._lock:
            entries = [*self._older, *([self._current] if self._current is not None else [])]
            self._current, self._older = None, []
            return [entry.transport for entry in entries]

    def _count(self, entry: ContextTransport[T], *, requests: int = 0, answers: int = 0) -> list[T]:
        with self._lock:
            entry.requests += requests
            entry.answers += answers
            return [] if entry is self._current else self._closable(entry)

    def _closable(self, entry: ContextTransport[T] | None) -> list[T]:
        # A request under way might be given the very connection that we are about to close as idle.
        if entry is None or entry not in self._older or entry.requests:
            return []
        if entry.answers:
            return _idle_connections(entry.transport)
        self._older.remove(entry)
        return [entry.transport]


def _idle_connections(transport: T) -> list[T]:
    """Connections that nobody will use again.

    The library has no public way to them. Should the private one go, they stay open until the last
    answer on this transport has been read.
    """
    connections = getattr(getattr(transport, "_pool", None), "connections", [])
    return cast("list[T]", [connection for connection in connections if connection.is_idle()])
