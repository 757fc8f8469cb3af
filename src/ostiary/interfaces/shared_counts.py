"""Counts that all workers of a gateway keep together: failed passwords, tried codes, rates and quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

T = TypeVar("T")

# The numbers that are kept under a key; empty at first.
State: TypeAlias = tuple[float, ...]
# Takes the state and the time, in seconds on a clock that all processes share; returns the new state, for how many
# seconds it matters, and a result for the caller. Pure: it is called again if another process changed the state first.
Change: TypeAlias = Callable[[State, float], tuple[State, float, T]]

NARROW = 6
WIDE = 64


class CountsFull(Exception):
    """There is no room for one more wide state, and none is forgotten before its time."""


class SharedCounts(Protocol):
    """Keeps a few numbers per key, for all processes that share the counts.

    A state has `NARROW` numbers, or with *wide* up to `WIDE`. It is forgotten when it no longer matters. There are
    bounds on how many are kept: when they are reached, narrow states that matter the least make room, and a new wide
    one is refused with `CountsFull`. Nothing survives a restart of the gateway. If the counts cannot be reached,
    raise `ProviderError`: the caller then refuses what it would have counted.
    """

    async def update(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        """Replace the state by what *change* makes of it, in one step: nobody else's change is lost."""

    async def close(self) -> None: ...


class ImmediateCounts(SharedCounts, Protocol):
    """Counts that can be updated without waiting, because all processes that share them are on one machine."""

    def update_now(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        """As `update`. For what is counted with every request."""
