"""Shared counts of all replicas, kept in their token store. Every update asks the store.

Called by what counts seldom and must be exact: lockouts and sign-ins.
"""

from __future__ import annotations

from typing import TypeVar

from ostiary.interfaces.shared_counts import Change, CountsFull
from ostiary.interfaces.store_abilities.replicas import CountStore

T = TypeVar("T")


class StoreCounts:
    """Implements `ostiary.interfaces.shared_counts.SharedCounts`. The store belongs to somebody else."""

    def __init__(self, store: CountStore) -> None:
        self._store = store

    async def update(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        (counted,) = await self._store.update_counts([(key, change)], wide=wide)
        if counted is None:
            raise CountsFull
        return counted.result

    async def close(self) -> None:
        pass
