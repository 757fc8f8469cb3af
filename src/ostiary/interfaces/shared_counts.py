"""Counts that all workers of a gateway keep together: failed passwords, tried codes, rates and quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

T = TypeVar("T")

# What is kept under a key: some numbers, none at first.
State: TypeAlias = tuple[float, ...]
# From the state and the time, in seconds on a clock that all who share the counts agree on: the new state, for how many
# seconds it matters, and whatever the caller wants to know. Pure: it may be called again when somebody was quicker.
Change: TypeAlias = Callable[[State, float], tuple[State, float, T]]

NARROW = 6
WIDE = 64


class CountsFull(Exception):
    """There is no room for one more wide state, and none is forgotten before its time."""


class SharedCounts(Protocol):
    """Keeps a few numbers per key, for whoever counts together.

    A state has `NARROW` numbers, or with *wide* up to `WIDE`. It is forgotten when it no longer matters. There are
    bounds on how many are kept: when they are reached, narrow states that matter the least make room, and a new wide
    one is refused with `CountsFull`. Nothing survives a restart of the gateway. If others cannot be asked, raise
    `ProviderError`: the caller then refuses what it would have counted.
    """

    async def update(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        """Replace the state by what *change* makes of it, in one step: nobody else's change is lost."""

    async def close(self) -> None: ...


class ImmediateCounts(SharedCounts, Protocol):
    """Counts that need not be waited for, because all who share them are on one machine."""

    def update_now(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        """As `update`. For what is counted with every request."""
