"""The only module that reads the time, so that tests can replace it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the wall clock time, aware, in UTC. For expiry times that are shared with other systems."""

    def monotonic(self) -> float:
        """Return seconds that never go back and include system sleep. For timeouts and backoff."""


def _seconds_since_boot() -> Callable[[], float]:
    # `time.monotonic` pauses while the machine is suspended. A gateway that wakes up after an hour would treat its
    # caches as fresh and accept tokens that were revoked meanwhile.
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot_time is None else partial(time.clock_gettime, boot_time)


class SystemClock:
    # No Python function around them: a gateway reads both for every request.
    now = staticmethod(partial(datetime.now, UTC))
    monotonic = staticmethod(_seconds_since_boot())


SYSTEM_CLOCK: Clock = SystemClock()
