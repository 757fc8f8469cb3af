"""Rate limit of log lines that would be written once per request, or once a second, during an outage.

The first line of a run is written immediately. After it, at most one line per interval is written, with the number of
lines that were left out. Every request still has its audit event.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ostiary.core.bounded_cache import Bounded
from ostiary.core.clock import Clock

INTERVAL_SECONDS = 10.0
# Runs that are counted separately. The text of a cause may come from the network, so their number is bounded.
MOST_CAUSES = 64


@dataclass(slots=True)
class _Run:
    next_at: float
    left_out: int = 0


class RepeatedLog:
    """Writes to *log*. Lines with the same message and cause are one run."""

    def __init__(self, log: logging.Logger, clock: Clock, *, interval: float = INTERVAL_SECONDS) -> None:
        self._log = log
        self._clock = clock
        self._interval = interval
        self._runs: Bounded[tuple[str, object], _Run] = Bounded(MOST_CAUSES)

    def write(self, level: int, message: str, fields: Mapping[str, object]) -> None:
        """Log *message* now, or count it for the next line of its run."""
        key, now = (message, fields.get("cause")), self._clock.monotonic()
        run = self._runs.get(key)
        if run is None:
            self._runs.keep(key, run := _Run(now))
        if now < run.next_at:
            run.left_out += 1
            return
        extra = {**fields, "left_out": run.left_out} if run.left_out else dict(fields)
        run.next_at, run.left_out = now + self._interval, 0
        self._log.log(level, message, extra=extra)

    def end(self) -> int:
        """Clear all runs after the outage, and return how many lines were left out since the last written one."""
        left_out = sum(run.left_out for run in self._runs.values())
        self._runs.clear()
        return left_out
