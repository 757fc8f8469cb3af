"""Thins out log lines that would otherwise be written once per request, or once a second, during an outage.

Used by `upstream.upstreams` and by the background work of a worker. The first line of a run is written at once; after
that at most one per interval, with the number of those that were left out. Every request still has its audit event.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ostiary.core.bounded_cache import Bounded
from ostiary.core.clock import Clock

INTERVAL_SECONDS = 10.0
# Different messages and causes that are told apart. The text of a cause may come from the network.
MOST_CAUSES = 64


@dataclass(slots=True)
class _Run:
    next_at: float
    left_out: int = 0


class RepeatedLog:
    """Writes to *log*; lines with the same message and cause are one run."""

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
        """The outage is over: forget all runs; returns how many lines were left out since the last one."""
        left_out = sum(run.left_out for run in self._runs.values())
        self._runs.clear()
        return left_out
