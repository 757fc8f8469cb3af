"""Counters shared by all workers of a gateway: failed passwords, tried codes, rates and quotas.

Replicas on several machines share them too, if their token store is a `CountStore`
(`ostiary_gateway.interfaces.store_capabilities`). Exact counts are then updated in the store (`SharedCounts.update`).
Counts of every request are decided locally, and reconciled with the other replicas shortly after (`ImmediateCounts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, TypeVar

T = TypeVar("T")

# The numbers stored under a key; empty at first.
State: TypeAlias = tuple[float, ...]
# Takes the state and the time, in seconds on a clock that all processes share; returns the new state, for how many
# seconds it matters, and a result for the caller. Pure: it is called again if another process changed the state first.
Change: TypeAlias = Callable[[State, float], tuple[State, float, T]]

NARROW = 6
WIDE = 64


class CountsFull(Exception):
    """The limit of wide states is reached. They are never evicted before they expire."""


class SharedCounts(Protocol):
    """Store a few numbers per key, for all processes that share the counts.

    A state has `NARROW` numbers, or with *wide* up to `WIDE`. It expires when it no longer matters. The number of
    states is limited: at the limit, the least relevant narrow states are evicted, and a new wide one fails with
    `CountsFull`. Nothing survives a restart of the gateway. If the counts are unreachable, raise `ProviderError`: the
    caller then denies what it would have counted.
    """

    async def update(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        """Apply *change* to the state atomically: no concurrent change is lost."""

    async def close(self) -> None: ...


class Reconciles(Protocol):
    """Reconcile the states that the replicas of a gateway have under the same keys.

    A replica reports its own counts as amounts per time slice; a counter without time slices uses slice zero. All
    methods are pure. Their time is the store's; it differs by a few milliseconds between machines.
    """

    wide: bool

    def charge(self, shared: State, now: float, amounts: Mapping[int, float]) -> tuple[State, float]:
        """Return the shared state after one replica has counted *amounts*, and for how many seconds it matters.

        The requests were already served, so they are charged even if nothing is left: only then the average is right.
        """

    def adopt(self, local: State, now: float, *, shared: State, unsettled: Mapping[int, float]) -> tuple[State, float]:
        """Return this machine's state, given the shared one, which does not contain *unsettled* yet."""


class ImmediateCounts(SharedCounts, Protocol):
    """Local counts that can be updated without waiting.

    Use either `update` or `update_now` for a key. Between replicas, `update` is exact, while `update_now` includes what
    others reported up to a moment ago.
    """

    def update_now(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        """Like `update`, but on this machine only. For counts of every request."""

    def report(self, key: str, how: Reconciles, amount: float = 1.0, *, part: int = 0) -> None:
        """Report to the other replicas soon that *amount* was counted under *key* with `update_now`.

        Counts that are not reported stay local to this machine.
        """
