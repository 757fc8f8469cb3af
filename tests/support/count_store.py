"""A store of counts in the memory of one process, which several replicas of a test share.

It keeps the contract of `ostiary_gateway.interfaces.store_capabilities.CountStore`, and can be away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.shared_counts import NARROW, WIDE, Change, State
from ostiary_gateway.interfaces.store_capabilities import Counted
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

T = TypeVar("T")

NARROW_LIMIT = 15_000
WIDE_LIMIT = 10_000


class MemoryCountStore:
    """Its time is the time of day of *clock*. `away`: it fails. `loses_answers`: it counts, and then it fails."""

    def __init__(self, clock: FakeClock, *, wide_limit: int = WIDE_LIMIT) -> None:
        self._clock = clock
        self._tables: dict[bool, dict[str, tuple[State, float]]] = {False: {}, True: {}}
        self._wide_limit = wide_limit
        self.away = self.loses_answers = False
        # How many keys each question was about.
        self.asked: list[int] = []

    @property
    def keys(self) -> list[str]:
        return [key for table in self._tables.values() for key in table]

    async def update_counts(
        self, changes: Sequence[tuple[str, Change[T]]], *, wide: bool = False
    ) -> list[Counted[T] | None]:
        await asyncio.sleep(0)
        if self.away:
            raise _unavailable()
        self.asked.append(len(changes))
        now, table = self._clock.now().timestamp(), self._tables[wide]
        room = self._wide_limit - len(table) if wide else len(changes)
        counted: list[Counted[T] | None] = []
        for key, change in changes:
            state, until = table.get(key, ((), 0.0))
            if key not in table and room <= 0:
                counted.append(None)
                continue
            room -= key not in table
            counted.append(_count(state if until > now else (), change, now, wide))
        # Only now, so that nothing is changed if one of them fails.
        for (key, _), each in zip(changes, counted, strict=True):
            table.pop(key, None)
            if each is not None and each.seconds > 0:
                table[key] = (each.state, now + each.seconds)
        while not wide and len(table) > NARROW_LIMIT:
            del table[next(iter(table))]
        if self.loses_answers:
            raise _unavailable()
        return counted


def _count(state: State, change: Change[T], now: float, wide: bool) -> Counted[T]:
    new, seconds, result = change(state, now)
    if len(new) > (WIDE if wide else NARROW):
        raise ValueError("a state has more numbers than fit")
    return Counted(new, seconds, result, now)


def _unavailable() -> ProviderError:
    return ProviderError("the token store cannot be asked", cause="it is away", code="token-store-unavailable")


class CountingTokenStore(MemoryTokenStore):
    """A token store that keeps counts for replicas in *counts*."""

    def __init__(self, counts: MemoryCountStore, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self._counts = counts

    async def update_counts(
        self, changes: Sequence[tuple[str, Change[T]]], *, wide: bool = False
    ) -> list[Counted[T] | None]:
        return await self._counts.update_counts(changes, wide=wide)
