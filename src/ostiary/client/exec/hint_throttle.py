"""How often an installHint is shown. Called by `plugin` when a command cannot be found."""

from __future__ import annotations

import threading

from ostiary.core.clock import Clock

HINTS_PER_WINDOW = 10
HINT_WINDOW_SECONDS = 3600.0


class HintThrottle:
    """Lets an installHint through ten times an hour: a controller would fill its log with it."""

    def __init__(self, clock: Clock, *, times: int = HINTS_PER_WINDOW, seconds: float = HINT_WINDOW_SECONDS) -> None:
        self._clock, self._times, self._seconds = clock, times, seconds
        self._lock = threading.Lock()
        self._started = float("-inf")
        self._count = 0

    def allows(self) -> bool:
        with self._lock:
            now = self._clock.monotonic()
            if now - self._started > self._seconds:
                self._started, self._count = now, 0
            self._count += 1
            return self._count <= self._times
