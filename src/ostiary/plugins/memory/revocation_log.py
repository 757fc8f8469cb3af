"""The log of revocations in the memory of one process. Used by the memory token store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ostiary.core.tokens import ends
from ostiary.interfaces.token_store import Revocation, RevocationBatch, Session

# How long a revocation is remembered, so that it also ends a session that was just about to begin.
REMEMBERED = timedelta(hours=1)
_EARLIEST = datetime.min.replace(tzinfo=UTC)


class MemoryRevocations:
    def __init__(self) -> None:
        self.head = 0
        # Numbers up to this one are no longer known, or said nothing.
        self._forgotten = 0
        self._log: dict[int, Revocation] = {}
        self._undone: set[int] = set()

    def record(self, revocation: Revocation, now: datetime) -> Revocation:
        self.head += 1
        recorded = replace(revocation, sequence=self.head, recorded_at=now)
        self._log[self.head] = recorded
        return recorded

    def marks(self) -> list[Revocation]:
        return [mark for mark in reversed(self._log.values()) if mark.sequence not in self._undone]

    def undo(self, sequence: int) -> bool:
        if sequence not in self._log or sequence in self._undone:
            return False
        self._undone.add(sequence)
        return True

    def after(self, sequence: int) -> RevocationBatch:
        later = tuple(recorded for number, recorded in self._log.items() if number > sequence)
        return RevocationBatch(self.head, later, complete=len(later) == self.head - sequence)

    def covers(self, session: Session) -> bool:
        if session.sequence is not None and session.sequence < self._forgotten:
            return True
        return any(ends(recorded, session) for number, recorded in self._log.items() if number not in self._undone)

    def last_before(self, moment: datetime) -> int:
        """The number of the last revocation that was written down before *moment*."""
        later = [number for number, recorded in self._log.items() if _time_of(recorded) >= moment]
        return min(later) - 1 if later else self.head

    def forget(self, now: datetime) -> None:
        recent = {number: recorded for number, recorded in self._log.items() if _time_of(recorded) > now - REMEMBERED}
        self._forgotten = max(self._forgotten, *self._log.keys() - recent.keys(), 0)
        self._log = recent
        self._undone &= recent.keys()

    def set_back(self, step: timedelta) -> None:
        self._log = {number: _earlier(recorded, step) for number, recorded in self._log.items()}
        # A number without a revocation: a reader sees the gap, and drops everything that it has cached.
        self.head += 1


def _time_of(recorded: Revocation) -> datetime:
    assert recorded.recorded_at is not None, "the log holds what was written down"
    return recorded.recorded_at


def _earlier(recorded: Revocation, step: timedelta) -> Revocation:
    at = None if recorded.at is None else max(recorded.at, _EARLIEST + step) - step
    return replace(recorded, at=at, recorded_at=_time_of(recorded) - step)
