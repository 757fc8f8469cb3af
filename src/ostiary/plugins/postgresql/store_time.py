"""Between this machine's clock and the time of the store, which is the database's for every replica.

Called by the parts of the PostgreSQL token store for every call. A session or a token has times of this machine; in the
database they are times of its clock. So replicas whose clocks differ agree on the moment at which a token ends.
"""

from __future__ import annotations

from datetime import datetime

from ostiary.core.clock import Clock
from ostiary.plugins.common.sessions.stored_session import micros, moment_of

SECOND = 1_000_000
# Clocks that agree this well are taken for the same one: times come back exactly as they were given.
AGREEMENT = SECOND
# By how much the measured offset must differ from the one in use: a slow answer is no change of a clock.
CHANGE = SECOND // 2


class DatabaseTime:
    """Measures with every answer by how much the database's clock is ahead of *clock*.

    *replacement* stands in for the database's clock, for tests that must hold it still.
    """

    def __init__(self, clock: Clock, replacement: Clock | None = None) -> None:
        self._clock = clock
        self._replacement = replacement
        self._offset = 0
        # The latest time of the store that an answer told.
        self.seen = 0
        # How often the offset has changed: times that were given out before are no longer right.
        self.changes = 0

    @property
    def override(self) -> int | None:
        """What the database is told to take for the time; None for its own clock."""
        return None if self._replacement is None else micros(self._replacement.now())

    @property
    def machine(self) -> int:
        return micros(self._clock.now())

    @property
    def expected(self) -> int:
        """What the database's clock says now, as far as is known here."""
        return self.machine + self._offset

    def note(self, clock: int, time: int | None, *, sent: int) -> None:
        """An answer told what the database's clock said, between *sent* and now on this machine's."""
        if time is not None:
            self.seen = max(self.seen, time)
        if self._replacement is not None:
            return
        earliest, latest = clock - self.machine, clock - sent
        if earliest > latest:
            # This machine's clock was set back meanwhile: the next answer tells more.
            return
        measured = min(max(self._offset, earliest), latest)
        if abs(measured) <= AGREEMENT:
            measured = 0
        if abs(measured - self._offset) > CHANGE:
            self._offset = measured
            self.changes += 1

    # --- times of this machine, and of the database's clock ---

    def to_database(self, moment: datetime) -> int:
        return micros(moment) + self._offset

    def to_machine(self, value: int) -> int:
        """Microseconds of this machine's clock, for microseconds of the database's."""
        return value - self._offset

    def moment(self, value: int) -> datetime:
        return moment_of(self.to_machine(value))
