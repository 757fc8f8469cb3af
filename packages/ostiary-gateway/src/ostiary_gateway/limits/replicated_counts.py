"""The counts of one machine, reconciled with those of all replicas through their token store.

    update        asks the store each time: exact
    update_now    decides on the machine's own counts
    report        keeps in mind what was decided at once
    exchange      tells it to the store, which charges it to the state of all; the machine adopts that state

Made for every gateway. Without a store that keeps counts (`join`) it is the machine's counts and nothing else. How far
off the counts of several replicas can be is worked out in ``docs/decisions/0044-replicas-count-together.md``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Protocol, TypeVar

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary_gateway.interfaces.shared_counts import Change, CountsFull, Reconciles, State
from ostiary_gateway.interfaces.store_capabilities import CountStore
from ostiary_gateway.limits.counts import MachineCounts, MemoryCounts

# Shared counts of all replicas, kept in their token store. Every update asks the store.
#
# Called by what counts seldom and must be exact: lockouts and sign-ins.

T = TypeVar("T")


class StoreCounts:
    """Implements `ostiary_gateway.interfaces.shared_counts.SharedCounts`. The store belongs to somebody else."""

    def __init__(self, store: CountStore) -> None:
        self._store = store

    async def update(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        (counted,) = await self._store.update_counts([(key, change)], wide=wide)
        if counted is None:
            raise CountsFull
        return counted.result

    async def close(self) -> None:
        pass


# The time by the clock of the token store, which all replicas can agree on, without asking the store for it.
#
# Called by `replicated_counts`, which learns the store's time with every exchange.


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


# How many keys one question to the store is about.
BATCH_KEYS = 200
# How many keys may wait for the store, narrow and wide ones each. It may be away for hours.
MOST_WAITING = 10_000
# How many parts of time one key may wait with.
MOST_PARTS = 64
# A store that has not answered by then is away.
EXCHANGE_SECONDS = 5.0


class UpdateNow(Protocol):
    def __call__(self, key: str, change: Change[T], *, wide: bool = False) -> T: ...


@dataclass(slots=True)
class _Unsettled:
    """What the other replicas have not been told about a key."""

    how: Reconciles
    amounts: dict[int, float] = field(default_factory=dict)

    def add(self, part: int, amount: float) -> None:
        self.amounts[part] = self.amounts.get(part, 0.0) + amount
        if len(self.amounts) > MOST_PARTS:
            del self.amounts[min(self.amounts)]


class ReplicatedCounts:
    """Implements `ostiary_gateway.interfaces.shared_counts.ImmediateCounts`. *local* is closed with it, the store is
    not.
    """

    # It is `local`'s own, since it is called with every request.
    update_now: UpdateNow

    def __init__(self, local: MemoryCounts | MachineCounts, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.local = local
        self.update_now = local.update_now
        self._clock = clock
        self._time = StoreTime(clock)
        self._store: CountStore | None = None
        self._narrow: dict[str, _Unsettled] = {}
        self._wide: dict[str, _Unsettled] = {}
        self._something_waits = asyncio.Event()
        self._being_told = 0
        # How many keys were not told to the others, because too many waited or the store had no room.
        self.dropped = 0

    def join(self, store: CountStore) -> None:
        """Count together with all who have joined *store*."""
        self._store = store
        self._exact = StoreCounts(store)
        self.local.read_time_from(self._time.now)

    @property
    def is_joined(self) -> bool:
        return self._store is not None

    @property
    def waiting(self) -> int:
        """How many keys the other replicas have not been told about."""
        return len(self._narrow) + len(self._wide) + self._being_told

    async def update(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        if self._store is None:
            return await self.local.update(key, change, wide=wide)
        return await self._exact.update(stored_key(key), change, wide=wide)

    def report(self, key: str, how: Reconciles, amount: float = 1.0, *, part: int = 0) -> None:
        if self._store is None:
            return
        table = self._wide if how.wide else self._narrow
        unsettled = table.get(key)
        if unsettled is None:
            unsettled = self._begin(table, key, how)
        unsettled.add(part, amount)

    async def wait_for_reports(self) -> None:
        """Return as soon as there is something to tell the others."""
        while not self.waiting:
            self._something_waits.clear()
            await self._something_waits.wait()

    async def exchange(self) -> None:
        """Settle with the store what waits now. If it raises, the rest goes on waiting."""
        for table in (self._narrow, self._wide):
            keys = list(table)
            for start in range(0, len(keys), BATCH_KEYS):
                await self._settle(table, keys[start : start + BATCH_KEYS])

    async def close(self) -> None:
        await self.local.close()

    # --- inside ---

    def _begin(self, table: dict[str, _Unsettled], key: str, how: Reconciles) -> _Unsettled:
        unsettled = table[key] = _Unsettled(how)
        self._make_room(table)
        self._something_waits.set()
        return unsettled

    def _make_room(self, table: dict[str, _Unsettled]) -> None:
        # What has waited longest matters least: limits forget with time.
        while len(table) > MOST_WAITING:
            del table[next(iter(table))]
            self.dropped += 1

    async def _settle(self, table: dict[str, _Unsettled], keys: list[str]) -> None:
        assert self._store is not None, "nothing waits for a store that there is not"
        batch = {key: table.pop(key) for key in keys if key in table}
        # Sorted, so that two replicas never wait for each other's keys.
        keys = sorted(batch, key=stored_key)
        changes = [(stored_key(key), partial(_charge, batch[key].how, batch[key].amounts)) for key in keys]
        began_at = self._clock.monotonic()
        self._being_told += len(batch)
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS):
                answers = await self._store.update_counts(changes, wide=table is self._wide)
        except BaseException:
            # Perhaps it was charged, and only the answer is lost. To charge it twice is safer than not at all.
            self._put_back(table, batch)
            raise
        finally:
            self._being_told -= len(batch)
        ended_at = self._clock.monotonic()
        for key, counted in zip(keys, answers, strict=True):
            if counted is None:
                # There is no room for it in the store: this machine goes on alone.
                self.dropped += 1
                continue
            self._time.correct(counted.now, earliest=began_at, latest=ended_at)
            # While the store was asked, more may have been counted.
            more = table[key].amounts if key in table else {}
            with suppress(CountsFull):
                self.update_now(key, partial(_adopt, batch[key].how, counted.state, more), wide=table is self._wide)

    def _put_back(self, table: dict[str, _Unsettled], batch: Mapping[str, _Unsettled]) -> None:
        later = dict(table)
        table.clear()
        table.update(batch)
        for key, unsettled in later.items():
            earlier = table.setdefault(key, unsettled)
            if earlier is not unsettled:
                for part, amount in unsettled.amounts.items():
                    earlier.add(part, amount)
        self._make_room(table)


def stored_key(key: str) -> str:
    """A key as the store keeps it: it shows no names and addresses. Whoever guesses one can still recognise it."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16, person=b"ostiary counts").hexdigest()


def _charge(how: Reconciles, amounts: Mapping[int, float], state: State, now: float) -> tuple[State, float, None]:
    return *how.charge(state, now, amounts), None


def _adopt(
    how: Reconciles, shared: State, unsettled: Mapping[int, float], state: State, now: float
) -> tuple[State, float, None]:
    return *how.adopt(state, now, shared=shared, unsettled=unsettled), None
