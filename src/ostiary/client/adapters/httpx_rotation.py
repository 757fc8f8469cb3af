"""Keeps one transport of httpx per TLS context, and retires the old one when the context is replaced.

Called by the `httpx` adapter for each request. A client certificate or the authorities may change at any time; requests
and answers that are under way on the old transport are left to end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

from ostiary.core.tls import SealedContext

# A transport of the library, threaded or async. Its idle connections are closed as it is.
T = TypeVar("T")


class UseOfTransport:
    """What is under way on a transport, and whether another one has taken its place."""

    __slots__ = ("is_retired", "under_way")

    def __init__(self) -> None:
        self.is_retired = False
        self.under_way: dict[object, bool] = {}
        """An object for each request until its answer has been read, and whether there is an answer."""


class ContextTransport(UseOfTransport, Generic[T]):
    """A transport of the library, and the TLS context it was made for."""

    __slots__ = ("context", "transport")

    def __init__(self, context: SealedContext | None, transport: T) -> None:
        super().__init__()
        self.context = context
        self.transport = transport


class TransportRotation(Generic[T]):
    """The transport for new requests, and older ones until their last answer has been read.

    It decides and never waits: what there is to close is returned, because that is done in one way by
    the threaded transport and in another by the async one.

    Nearly every request finds nothing changed, so requests take no lock. Each writes into `under_way`, which is atomic
    for a dict, and reads `is_retired` afterwards. A rotation sets `is_retired` and reads `under_way` afterwards. So one
    of the two sees the other, and whoever sees that a transport is retired asks for `closable`.
    """

    def __init__(self, context: Callable[[], SealedContext | None], make: Callable[[SealedContext | None], T]) -> None:
        self._context = context
        self._make = make
        self._lock = threading.Lock()
        self._current: ContextTransport[T] | None = None
        self._older: list[ContextTransport[T]] = []

    def begin(self, exchange: object) -> tuple[ContextTransport[T], Sequence[T]]:
        """The transport to send a request on, and what to close.

        *exchange* stands for the request in `under_way`, and for its answer until that has been read.
        """
        entry = self._current
        if entry is not None and entry.context is self._context():
            entry.under_way[exchange] = False
            if not entry.is_retired:
                return entry, ()
            del entry.under_way[exchange]
        return self._begin_anew(exchange)

    def closable(self) -> list[T]:
        """What to close: idle connections of transports that are retired, and transports that nobody uses any more."""
        with self._lock:
            return self._all_closable()

    def close(self) -> list[T]:
        with self._lock:
            entries = [*self._older, *([self._current] if self._current is not None else [])]
            self._current, self._older = None, []
            return [entry.transport for entry in entries]

    def _begin_anew(self, exchange: object) -> tuple[ContextTransport[T], Sequence[T]]:
        with self._lock:
            # Asked with the lock held, or a thread with yesterday's answer could undo a rotation.
            context = self._context()
            entry = self._current
            if entry is None or entry.context is not context:
                if entry is not None:
                    entry.is_retired = True
                    self._older.append(entry)
                entry = self._current = ContextTransport(context, self._make(context))
            entry.under_way[exchange] = False
            return entry, self._all_closable()

    def _all_closable(self) -> list[T]:
        return [closable for entry in tuple(self._older) for closable in self._closable(entry)]

    def _closable(self, entry: ContextTransport[T]) -> list[T]:
        answered = entry.under_way.copy().values()
        # A request under way might be given the very connection that we are about to close as idle.
        if not all(answered):
            return []
        if answered:
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
