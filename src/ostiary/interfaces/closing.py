"""Providers that hold something open: a file, a connection, a task."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Closes(Protocol):
    """A provider of any type that has something to close.

    Called once, when the gateway ends or a reload has replaced the provider, after its last request. A provider that
    was built and never used is closed, too. An exception is ignored.
    """

    async def close(self) -> None: ...
