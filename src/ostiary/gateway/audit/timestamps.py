"""Monotonic seconds as the timestamps of audit events, without reading the time of day for each event.

Called by the auditor twice for each event.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ostiary.core.clock import Clock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLISECONDS = tuple(f"{number:03d}" for number in range(1000))
_MICROSECONDS = tuple(f"{number:03d}Z" for number in range(1000))


class Timestamps:
    """Monotonic seconds as the time of day, to the microsecond.

    Reading the time of day and formatting a date would cost more than the rest of an event. So the two clocks are
    compared once a second, which also follows a clock that is set, and only the fraction is formatted each time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._prefix = ""
        # What to add to monotonic microseconds to get those since the second that `_prefix` names.
        self._offset = float("-inf")
        self._difference = 0
        self._good_until = float("-inf")

    def both(self, first: float, second: float) -> tuple[str, str]:
        """The timestamps of two moments, which are mostly in the same second."""
        if second < self._good_until:
            offset, prefix = self._offset, self._prefix
            early, late = int(first * 1e6 + offset), int(second * 1e6 + offset)
            if 0 <= early <= late < 1_000_000:
                return (
                    f"{prefix}{_MILLISECONDS[early // 1000]}{_MICROSECONDS[early % 1000]}",
                    f"{prefix}{_MILLISECONDS[late // 1000]}{_MICROSECONDS[late % 1000]}",
                )
        return self.stamp(first), self.stamp(second)

    def stamp(self, at: float) -> str:
        if at >= self._good_until:
            self._compare()
        microsecond = int(at * 1e6 + self._offset)
        if not 0 <= microsecond < 1_000_000:
            microsecond = self._format(at)
        return f"{self._prefix}{_MILLISECONDS[microsecond // 1000]}{_MICROSECONDS[microsecond % 1000]}"

    def _compare(self) -> None:
        now = self._clock.monotonic()
        # Whole microseconds: as floats, today's seconds since 1970 are no longer exact to one.
        self._difference = (self._clock.now() - _EPOCH) // _MICROSECOND - int(now * 1e6 + 0.5)
        self._good_until = now + 1.0
        self._format(now)

    def _format(self, at: float) -> int:
        second, microsecond = divmod(self._difference + int(at * 1e6 + 0.5), 1_000_000)
        self._prefix = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        self._offset = float(self._difference - second * 1_000_000) + 0.5
        return microsecond
