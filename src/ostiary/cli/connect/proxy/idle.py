"""When the proxy ends by itself: no request is under way, and nobody has asked for anything for a while. Pure."""

from __future__ import annotations

from ostiary.core.clock import Clock


class IdleTime:
    """How long nothing has happened. `touch` is called whenever something does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()

    def touch(self) -> None:
        self._since = self._clock.monotonic()

    def seconds_left(self, limit: float) -> float:
        """How long until *limit* has passed."""
        return self._since + limit - self._clock.monotonic()

    def is_over(self, limit: float, *, busy: bool) -> bool:
        """Whether *limit* seconds have passed; never while a request is under way."""
        if busy:
            self.touch()
        return self.seconds_left(limit) <= 0
