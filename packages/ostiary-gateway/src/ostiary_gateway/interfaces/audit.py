"""Audit providers: where the record of every request is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class AuditProvider(Protocol):
    """Keeps audit events: a file, a log server, a message queue.

    An event is a line of JSON, an ``audit.k8s.io/v1`` Event, in ASCII and ending in a line break. The gateway collects
    events and calls `store` with a batch, one call at a time, in a thread and an event loop of this provider's own: one
    that is slow holds up no request. What waits is bounded. What does not fit is dropped and counted; with
    `audit.blocking` the request is refused.
    """

    async def store(self, events: Sequence[str]) -> None:
        """Keep all of them, in this order; return when they are kept.

        Raise if they cannot be kept: then they count as dropped, and are not given again. Try again here if that may
        help. After `STORE_SECONDS` the call is cancelled, and they count as dropped, too.
        """


# How long one batch may take.
STORE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Batches:
    """How many events wait at most, how many are given at once, and after how many seconds however few are given."""

    buffer: int = 10_000
    size: int = 400
    seconds: float = 30.0


@runtime_checkable
class ChoosesBatches(Protocol):
    """An audit provider that says how large its batches are."""

    batches: Batches


@runtime_checkable
class Begins(Protocol):
    """An audit provider that prepares itself when the gateway starts."""

    def begin(self, *, blocking: bool) -> None:
        """Called once, before the first event, in the event loop of the gateway.

        Raise if events cannot be kept: the gateway does not start then. *blocking* is the setting `audit.blocking`: an
        event is then kept when `accept` returns.
        """


@runtime_checkable
class RecordsAtOnce(Protocol):
    """An audit provider that takes each event as it comes, in the event loop of the gateway; `store` is not called.

    For those whose work is done at once, as writing to a file is. `dropped` counts the accepted events that could not
    be kept: none is lost silently.
    """

    dropped: int

    def accept(self, line: str) -> None:
        """Take one event, without waiting for anybody. If blocking, raise `AuditUnavailable` if it is not kept."""

    async def flush(self) -> None:
        """Try to keep all that was accepted."""


@runtime_checkable
class KeepsEventsInFile(Protocol):
    """An audit provider whose events lie in a file, a line each: ``ostiary-gateway explain`` and ``policy replay`` read
    it.
    """

    events_file: str
