"""The only reader of the time, so that a test can hold it still."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, aware, in UTC. What expires by agreement with others is judged by this."""

    def monotonic(self) -> float:
        """Seconds that only go forward. Waiting and backing off are judged by this."""


class SystemClock:
    # Without a Python function around them: a gateway reads both for every request.
    now = staticmethod(partial(datetime.now, UTC))
    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK: Clock = SystemClock()
