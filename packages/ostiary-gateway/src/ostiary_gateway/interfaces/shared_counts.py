"""Counts that all workers of a gateway keep together: failed passwords, tried codes, rates and quotas.

Replicas on several machines keep them together too, if their token store is a `CountStore`
(`ostiary_gateway.interfaces.store_capabilities`). What must be exact is then counted in the store
(`SharedCounts.update`). What is counted with every request is decided on the machine's own counts, and reconciled with
the other replicas a moment later (`ImmediateCounts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class Reconciles(Protocol):
    """How the replicas of a gateway reconcile the states that each of them has under the same keys.

    What one replica has counted by itself is told in amounts, by the part of time that they belong to; whoever has no
    such parts uses part zero. All methods are pure. Their time is the store's; it differs by a few milliseconds between
    machines.
    """

    wide: bool

    def charge(self, shared: State, now: float, amounts: Mapping[int, float]) -> tuple[State, float]:
        """The state of all replicas after one of them has counted *amounts*, and for how many seconds it matters.

        It has happened, so it is charged also where nothing is left: only then the average is right.
        """

    def adopt(self, local: State, now: float, *, shared: State, unsettled: Mapping[int, float]) -> tuple[State, float]:
        """The state of this machine once it knows the one of all, in which *unsettled* is not charged yet."""


class ImmediateCounts(SharedCounts, Protocol):
    """Counts that can be updated without waiting: the machine's own.

    Use either `update` or `update_now` for a key. Between replicas `update` is exact, and `update_now` knows what
    others reported until a moment ago.
    """

    def update_now(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        """As `update`, on this machine. For what is counted with every request."""

    def report(self, key: str, how: Reconciles, amount: float = 1.0, *, part: int = 0) -> None:
        """Something was counted under *key* with `update_now`: let the other replicas know soon.

        What is not reported is known to this machine alone.
        """
