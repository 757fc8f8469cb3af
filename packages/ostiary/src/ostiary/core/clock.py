"""The only reader of the time, so that a test can hold it still."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, aware, in UTC. What expires by agreement with others is judged by this."""

    def monotonic(self) -> float:
        """Seconds that only go forward, also while the machine sleeps. Waiting and backing off are judged by this."""


def _seconds_since_boot() -> Callable[[], float]:
    # `time.monotonic` stands still while a machine is suspended. A gateway that wakes up after an hour would take what
    # it remembers for fresh, and accept tokens that were revoked meanwhile.
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot_time is None else partial(time.clock_gettime, boot_time)


class SystemClock:
    # Without a Python function around them: a gateway reads both for every request.
    now = staticmethod(partial(datetime.now, UTC))
    monotonic = staticmethod(_seconds_since_boot())


SYSTEM_CLOCK: Clock = SystemClock()
