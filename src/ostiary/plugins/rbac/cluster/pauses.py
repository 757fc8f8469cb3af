"""How long to wait before the next attempt: ever longer while it goes on to fail, and never all at the same moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

FIRST_SECONDS = 0.1
# After failures, and after watches that the server ends too early: the second is served, so changes come soon enough.
MOST_AFTER_FAILURE, MOST_AFTER_END = 10.0, 2.0
# A watch that lasted so long ended as watches do.
LASTED_SECONDS = 10.0


class Pauses:
    """The pauses of one follower. *share* is which part of a pause is waited: workers must not come back together."""

    def __init__(
        self,
        first: float = FIRST_SECONDS,
        share: Callable[[], float] = lambda: random.uniform(0.5, 1.0),  # noqa: S311  # no secret
    ) -> None:
        self._first = first
        self._share = share
        self._attempts = 0

    def next_pause(self, *, lasted: float, failed: bool, longest: float = 0.0) -> float:
        """The seconds to wait after an attempt that *lasted* so long; at most *longest*, if that is set."""
        if not failed and lasted >= LASTED_SECONDS:
            self._attempts = 0
        longest = longest or (MOST_AFTER_FAILURE if failed else MOST_AFTER_END)
        pause = min(self._first * 2.0 ** min(self._attempts, 20), longest)
        self._attempts += 1
        return pause * self._share()

    async def wait(self, *, lasted: float, failed: bool, longest: float = 0.0) -> None:
        await asyncio.sleep(self.next_pause(lasted=lasted, failed=failed, longest=longest))
