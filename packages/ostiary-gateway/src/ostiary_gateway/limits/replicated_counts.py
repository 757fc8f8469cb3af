"""The counts of one machine, reconciled with those of all replicas through the token store.

    update        queries the store each time: exact
    update_now    uses the machine's own counts
    report        queues an update that was decided locally
    exchange      sends queued updates to the store, which adds them to the shared state; the machine adopts that state

Without a store that keeps counts (`join`), these are the machine's counts. For the possible deviation between replicas
see ``docs/decisions/0044-replicas-count-together.md``.
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

T = TypeVar("T")


class StoreCounts:
    """Counts in the token store, shared by all replicas, for rare updates that must be exact: lockouts and sign-ins.

    Implements `ostiary_gateway.interfaces.shared_counts.SharedCounts`. Does not close the store.
    """

    def __init__(self, store: CountStore) -> None:
        self._store = store

    async def update(self, key: str, change: Change[T], *, wide: bool = False) -> T:
        (counted,) = await self._store.update_counts([(key, change)], wide=wide)
        if counted is None:
            raise CountsFull
        return counted.result

    async def close(self) -> None:
        pass


class StoreTime:
    """The time of the token store's clock, which all replicas share, computed from the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        # Until the first exchange, assume that the clocks agree.
        self._ahead = clock.now().timestamp() - clock.monotonic()

    def now(self) -> float:
        return self._monotonic() + self._ahead

    def correct(self, now: float, *, earliest: float, latest: float) -> None:
        """Adjust to the store's time *now*, read between *earliest* and *latest* on the monotonic clock.

        Moves the time as little as possible: it stays unchanged within the delay of an exchange, so a slow one causes
        no jump.
        """
        self._ahead = min(max(self._ahead, now - latest), now - earliest)


# Keys per query of the store.
BATCH_KEYS = 200
# Maximum number of unsent keys, for narrow and wide ones each: the store may be unavailable for hours.
MOST_WAITING = 10_000
# Maximum number of unsent time slices per key.
MOST_PARTS = 64
# Timeout for one exchange; after it the store counts as unavailable.
EXCHANGE_SECONDS = 5.0


class UpdateNow(Protocol):
    def __call__(self, key: str, change: Change[T], *, wide: bool = False) -> T: ...


@dataclass(slots=True)
class _Unsettled:
    """Unsent updates of a key."""

    how: Reconciles
    amounts: dict[int, float] = field(default_factory=dict)

    def add(self, part: int, amount: float) -> None:
        self.amounts[part] = self.amounts.get(part, 0.0) + amount
        if len(self.amounts) > MOST_PARTS:
            del self.amounts[min(self.amounts)]


class ReplicatedCounts:
    """Implements `ostiary_gateway.interfaces.shared_counts.ImmediateCounts`. Closes *local*, but not the store."""

    # The method of `local` itself, because it is called for every request.
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
        # Number of keys that were not sent, because too many were queued or the store had no room.
        self.dropped = 0

    def join(self, store: CountStore) -> None:
        """Count together with all replicas that have joined *store*."""
        self._store = store
        self._exact = StoreCounts(store)
        self.local.read_time_from(self._time.now)

    @property
    def is_joined(self) -> bool:
        return self._store is not None

    @property
    def waiting(self) -> int:
        """The number of keys with unsent updates."""
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
        """Return when there are unsent updates."""
        while not self.waiting:
            self._something_waits.clear()
            await self._something_waits.wait()

    async def exchange(self) -> None:
        """Send all queued updates to the store. If it raises, the rest stays queued."""
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
        # The oldest updates matter least, because limits decay with time.
        while len(table) > MOST_WAITING:
            del table[next(iter(table))]
            self.dropped += 1

    async def _settle(self, table: dict[str, _Unsettled], keys: list[str]) -> None:
        assert self._store is not None, "nothing waits for a store that there is not"
        batch = {key: table.pop(key) for key in keys if key in table}
        # Sorted, so that two replicas cannot deadlock.
        keys = sorted(batch, key=stored_key)
        changes = [(stored_key(key), partial(_charge, batch[key].how, batch[key].amounts)) for key in keys]
        began_at = self._clock.monotonic()
        self._being_told += len(batch)
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS):
                answers = await self._store.update_counts(changes, wide=table is self._wide)
        except BaseException:
            # The update may have been stored before the error. Counting it twice is safer than not at all.
            self._put_back(table, batch)
            raise
        finally:
            self._being_told -= len(batch)
        ended_at = self._clock.monotonic()
        for key, counted in zip(keys, answers, strict=True):
            if counted is None:
                # The store has no room for the key: this machine counts alone.
                self.dropped += 1
                continue
            self._time.correct(counted.now, earliest=began_at, latest=ended_at)
            # Updates made during the exchange.
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
    """Return the key for the store, a hash that hides names and addresses. A guessed key can still be verified."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16, person=b"ostiary counts").hexdigest()


def _charge(how: Reconciles, amounts: Mapping[int, float], state: State, now: float) -> tuple[State, float, None]:
    return *how.charge(state, now, amounts), None


def _adopt(
    how: Reconciles, shared: State, unsettled: Mapping[int, float], state: State, now: float
) -> tuple[State, float, None]:
    return *how.adopt(state, now, shared=shared, unsettled=unsettled), None
