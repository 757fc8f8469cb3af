"""How far a long command is, in one line of a terminal that is written over; nowhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

# Often enough to be seen, seldom enough to cost nothing.
SECONDS = 0.1


class Progress:
    """Counts towards *expected*, which may be unknown. Printed on stderr, if that is a terminal."""

    def __init__(self, what: str, expected: int | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._expected = expected
        self._now = now
        self._start = now()
        self._printed_at = float("-inf")
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()

    @property
    def seconds(self) -> float:
        return self._now() - self._start

    def __call__(self, count: int) -> None:
        now = self._now()
        if self._is_shown and now - self._printed_at >= SECONDS:
            self._printed_at = now
            self._print(self.text(count))

    def text(self, count: int) -> str:
        of_all = "" if self._expected is None else f" of about {self._expected:,}"
        return f"{self._what} {count:,}{of_all} sessions, {rate(count, self.seconds):,.0f} per second"

    def close(self) -> None:
        if self._is_shown:
            self._print("")

    def _print(self, text: str) -> None:
        # To the beginning of the line, and without what stood there before.
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
