"""What the auditor expects of a sink. Called with finished lines.

A sink either stores what it accepted or counts it as dropped: no event is lost silently. A *blocking* sink has stored
an event when `accept` returns, and raises if it cannot; the others never raise and never hold up a request.
"""

from __future__ import annotations

from typing import Protocol


class Sink(Protocol):
    """Called from the event loop only. `dropped` counts the accepted events that could not be stored."""

    dropped: int

    def accept(self, line: str) -> None:
        """Take one event, ending in a line break. A blocking sink raises `AuditUnavailable`, the others do not."""

    async def flush(self) -> None:
        """Try to store all that was accepted."""

    async def close(self) -> None:
        """Store what was accepted, or count it as dropped. Harmless when repeated."""
