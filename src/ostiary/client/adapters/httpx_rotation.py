"""Keeps one transport of httpx per TLS context, and retires the old one when the context is replaced.

Called by the `httpx` adapter for each request. A client certificate or the authorities may change at any time; requests
and answers that are under way on the old transport are left to end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ostiary.core.tls import SealedContext


class ContextTransport:
    """A transport of the library, the TLS context it was made for, and how much is under way on it."""

    __slots__ = ("answers", "context", "requests", "transport")

    def __init__(self, context: SealedContext | None, transport: Any) -> None:
        self.context = context
        self.transport = transport
        self.requests = 0
        self.answers = 0


class TransportRotation:
    """The transport for new requests, and older ones until their last answer has been read.

    It decides and never waits: what there is to close is returned, because that is done in one way by
    the threaded transport and in another by the async one.
    """

    def __init__(
        self, context: Callable[[], SealedContext | None], make: Callable[[SealedContext | None], Any]
    ) -> None:
        self._context = context
        self._make = make
        self._lock = threading.Lock()
        self._current: ContextTransport | None = None
        self._older: list[ContextTransport] = []

    def request(self) -> tuple[ContextTransport, list[Any]]:
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

    def count_answer(self, entry: ContextTransport) -> list[Any]:
        return self._count(entry, requests=-1, answers=+1)

    def count_failure(self, entry: ContextTransport) -> list[Any]:
        return self._count(entry, requests=-1)

    def count_end(self, entry: ContextTransport) -> list[Any]:
        return self._count(entry, answers=-1)

    def close(self) -> list[Any]:
        with self._lock:
            entries = [*self._older, *([self._current] if self._current is not None else [])]
            self._current, self._older = None, []
            return [entry.transport for entry in entries]

    def _count(self, entry: ContextTransport, *, requests: int = 0, answers: int = 0) -> list[Any]:
        with self._lock:
            entry.requests += requests
            entry.answers += answers
            return [] if entry is self._current else self._closable(entry)

    def _closable(self, entry: ContextTransport | None) -> list[Any]:
        # A request under way might be given the very connection that we are about to close as idle.
        if entry is None or entry not in self._older or entry.requests:
            return []
        if entry.answers:
            return _idle_connections(entry.transport)
        self._older.remove(entry)
        return [entry.transport]


def _idle_connections(transport: Any) -> list[Any]:
    """Connections that nobody will use again.

    The library has no public way to them. Should the private one go, they stay open until the last
    answer on this transport has been read.
    """
    connections = getattr(getattr(transport, "_pool", None), "connections", [])
    return [connection for connection in connections if connection.is_idle()]
