"""A fake clock for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FakeClock:
    """A `ostiary.core.clock.Clock` for tests. `advance` moves both clocks, `set_back` only the wall clock."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = now
        self._monotonic = 1000.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0) -> None:
        step = timedelta(seconds=seconds, minutes=minutes, hours=hours)
        self._now += step
        self._monotonic += step.total_seconds()

    def set_back(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0) -> None:
        """Set back the wall clock, as an administrator would. The monotonic clock does not change."""
        self._now -= timedelta(seconds=seconds, minutes=minutes, hours=hours)
