"""The time by the clock of the token store, which all replicas can agree on, without asking the store for it.

Called by `replicated_counts`, which learns the store's time with every exchange.
"""

from __future__ import annotations

from ostiary.core.clock import Clock


class StoreTime:
    """This machine's monotonic clock, and how far ahead of it the clock of the store is."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        # Until the store is asked for the first time, its clock is taken to be right, as ours is.
        self._ahead = clock.now().timestamp() - clock.monotonic()

    def now(self) -> float:
        return self._monotonic() + self._ahead

    def correct(self, now: float, *, earliest: float, latest: float) -> None:
        """The store's clock said *now* at a moment between *earliest* and *latest*, by this machine's monotonic clock.

        The time moves no farther than it has to. So it stands still for the whole delay of an exchange, and a slow one
        does not make it jump.
        """
        self._ahead = min(max(self._ahead, now - latest), now - earliest)
