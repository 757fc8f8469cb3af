"""Audit providers: store the audit event of every request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class AuditProvider(Protocol):
    """Store audit events: in a file, a log server, a message queue.

    An event is one line of JSON, an ``audit.k8s.io/v1`` Event, in ASCII and ending in a line break. The gateway
    collects events and calls `store` with a batch, one call at a time, in a thread and event loop of this provider's
    own: a slow provider delays no request. The queue is bounded. Events that do not fit are dropped and counted; with
    `audit.blocking` the request fails instead.
    """

    async def store(self, events: Sequence[str]) -> None:
        """Store all events, in this order; return when they are stored.

        Raise if they cannot be stored: they count as dropped, and are not passed again, so retry here. The call is
        cancelled after `STORE_SECONDS`, and the events count as dropped.
        """


# Timeout of one `store` call.
STORE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Batches:
    """Batching: maximum queue length, maximum batch size, and seconds after which a smaller batch is sent."""

    buffer: int = 10_000
    size: int = 400
    seconds: float = 30.0


@runtime_checkable
class ChoosesBatches(Protocol):
    """An audit provider that chooses its batch sizes."""

    batches: Batches


@runtime_checkable
class Begins(Protocol):
    """An audit provider with work to do when the gateway starts."""

    def begin(self, *, blocking: bool) -> None:
        """Called once, before the first event, in the event loop of the gateway.

        Raise if events cannot be stored: the gateway then fails to start. *blocking* is the setting `audit.blocking`:
        an event must be stored when `accept` returns.
        """


@runtime_checkable
class RecordsAtOnce(Protocol):
    """An audit provider that stores each event synchronously in the gateway's event loop; `store` is not called.

    For providers that never wait, such as one that writes to a file. `dropped` counts the accepted events that could
    not be stored: none is lost silently.
    """

    dropped: int

    def accept(self, line: str) -> None:
        """Store one event without blocking. If blocking, raise `AuditUnavailable` if it is not stored."""

    async def flush(self) -> None:
        """Try to store all accepted events."""


@runtime_checkable
class KeepsEventsInFile(Protocol):
    """An audit provider that writes events to a file, one per line.

    ``ostiary-gateway explain`` and ``policy replay`` read it.
    """

    events_file: str
