"""Clocks for tests that need one which runs."""

from __future__ import annotations

from datetime import datetime, timedelta

from ostiary.core.clock import SYSTEM_CLOCK


class OffsetClock:
    """Implements `ostiary.core.clock.Clock`: the system's clock, with a time of day that is set to another one.

    For what is compared with the clock of a server, which runs, too. A clock that stands still would be seen to fall
    behind.
    """

    def __init__(self, offset: timedelta = timedelta()) -> None:
        self._offset = offset

    def now(self) -> datetime:
        return SYSTEM_CLOCK.now() + self._offset

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()

    def set_back(self, *, hours: float) -> None:
        self._offset -= timedelta(hours=hours)
