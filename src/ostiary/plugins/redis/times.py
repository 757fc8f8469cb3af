"""The server's clock and ours. What expires is judged by the server's, so that all replicas agree; pure.

A time goes to a script as the server's clock would say it, in microseconds. It comes back in the store's own time,
which is ahead of that clock by `shift`: see ``lua/parts/state.lua``.
"""

from __future__ import annotations

from datetime import UTC, datetime

from ostiary.core.clock import Clock
from ostiary.plugins.common.sessions.stored_session import micros, moment_of

# Clocks that agree within this are taken for one clock: measuring is not more exact.
AGREEMENT = 1_000_000
# The difference in use changes only if it is wrong by more than this.
HYSTERESIS = 500_000
# An answer that took longer tells too little about the clock.
LONGEST_ROUND_TRIP = 500_000

_EARLIEST = micros(datetime.min.replace(tzinfo=UTC))
_LATEST = micros(datetime.max.replace(tzinfo=UTC))


def nearest_moment(value: int) -> datetime:
    """The time; for one that no calendar has, the first or the last that it has."""
    return moment_of(min(max(value, _EARLIEST), _LATEST))


class Times:
    """With *given*, the scripts take the time from our clock: for tests, which hold it still."""

    def __init__(self, clock: Clock, *, given: bool) -> None:
        self._clock, self._given = clock, given
        self.ahead = 0

    def now(self) -> int:
        return micros(self._clock.now())

    @property
    def argument(self) -> str:
        """The time that a script is given; empty if it is to ask its server."""
        return str(self.now()) if self._given else ""

    def to_server(self, moment: datetime) -> int:
        return micros(moment) + self.ahead

    def from_store(self, value: int, shift: int) -> datetime:
        return nearest_moment(value - shift - self.ahead)

    def measure(self, server: int, before: int, after: int) -> bool:
        """Take note of the server's time, asked between two times of ours; whether the difference has changed."""
        if self._given or not 0 <= after - before <= LONGEST_ROUND_TRIP:
            return False
        measured = server - (before + after) // 2
        if abs(measured) <= AGREEMENT:
            measured = 0
        if abs(measured - self.ahead) <= HYSTERESIS:
            return False
        self.ahead = measured
        return True
