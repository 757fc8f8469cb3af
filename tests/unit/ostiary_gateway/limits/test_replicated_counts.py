"""The counts of replicas: what is settled with the store, what happens while it is away, and what is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.shared_counts import Change, State
from ostiary_gateway.interfaces.store_capabilities import Counted
from ostiary_gateway.limits import replicated_counts
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.limits.replicated_counts import BATCH_KEYS, MOST_PARTS, ReplicatedCounts
from ostiary_gateway.testing import FakeClock
from tests.support.count_store import MemoryCountStore

T = TypeVar("T")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryCountStore:
    return MemoryCountStore(clock)


class Sums:
    """Adds up what is counted under a key."""

    def __init__(self, *, wide: bool = False) -> None:
        self.wide = wide

    def charge(self, shared: State, now: float, amounts: Mapping[int, float]) -> tuple[State, float]:
        return ((shared[0] if shared else 0.0) + sum(amounts.values()),), 3600.0

    def adopt(self, local: State, now: float, *, shared: State, unsettled: Mapping[int, float]) -> tuple[State, float]:
        return (shared[0] + sum(unsettled.values()),), 3600.0

    def add(self, counts: ReplicatedCounts, key: str = "k", *, part: int = 0) -> None:
        counts.update_now(key, lambda state, now: (((state[0] if state else 0.0) + 1,), 3600.0, None), wide=self.wide)
        counts.report(key, self, part=part)

    def sum(self, counts: ReplicatedCounts, key: str = "k") -> float:
        return counts.update_now(
            key, lambda state, now: (state, 3600.0 if state else 0.0, state[0] if state else 0.0), wide=self.wide
        )


def replica(store: MemoryCountStore | None, clock: FakeClock) -> ReplicatedCounts:
    counts = ReplicatedCounts(MemoryCounts(clock=clock), clock=clock)
    if store is not None:
        counts.join(store)
    return counts


@pytest.mark.parametrize("wide", [False, True])
async def test_what_one_replica_counts_at_once_the_other_knows_after_both_have_exchanged(
    store: MemoryCountStore, clock: FakeClock, wide: bool
) -> None:
    one, other, sums = replica(store, clock), replica(store, clock), Sums(wide=wide)
    for _ in range(3):
        sums.add(one)
    sums.add(other)
    assert (sums.sum(one), sums.sum(other)) == (3, 1)
    await one.exchange()
    await other.exchange()
    assert (sums.sum(one), sums.sum(other)) == (3, 4)


async def test_what_is_settled_is_not_settled_again(store: MemoryCountStore, clock: FakeClock) -> None:
    counts, sums = replica(store, clock), Sums()
    sums.add(counts)
    await counts.exchange()
    await counts.exchange()
    assert (counts.waiting, store.asked) == (0, [1])
    assert sums.sum(counts) == 1


async def test_nothing_is_asked_while_nothing_was_counted(store: MemoryCountStore, clock: FakeClock) -> None:
    counts = replica(store, clock)
    waiting = asyncio.create_task(counts.wait_for_reports())
    await asyncio.sleep(0)
    assert not waiting.done()
    Sums().add(counts)
    await waiting
    await counts.exchange()
    assert store.asked == [1]


async def test_without_a_store_for_replicas_nothing_waits(clock: FakeClock) -> None:
    counts, sums = replica(None, clock), Sums()
    sums.add(counts)
    assert (counts.waiting, counts.is_joined, sums.sum(counts)) == (0, False, 1)


@pytest.mark.parametrize("wide", [False, True])
async def test_without_a_store_for_replicas_an_exact_count_is_the_local_one(clock: FakeClock, wide: bool) -> None:
    def add(state: State, now: float) -> tuple[State, float, float]:
        total = (state[0] if state else 0.0) + 1
        return (total,), 3600.0, total

    counts = replica(None, clock)
    assert [await counts.update("k", add, wide=wide) for _ in range(2)] == [1, 2]
    assert counts.update_now("k", add, wide=wide) == 3


async def test_names_and_addresses_do_not_stand_in_the_store(store: MemoryCountStore, clock: FakeClock) -> None:
    counts = replica(store, clock)
    await counts.update("lockout/staff/9/192.0.2.1/alice", lambda state, now: ((1.0,), 60.0, None))
    Sums().add(counts, "bucket/requests/alice")
    await counts.exchange()
    assert len(store.keys) == 2
    assert not any("alice" in key or "192" in key for key in store.keys)


class SlowStore(MemoryCountStore):
    """Its answer waits for `answer`."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.answer = asyncio.Event()

    async def update_counts(
        self, changes: Sequence[tuple[str, Change[T]]], *, wide: bool = False
    ) -> list[Counted[T] | None]:
        answers = await super().update_counts(changes, wide=wide)
        await self.answer.wait()
        return answers


async def test_what_is_counted_while_the_store_is_asked_is_not_forgotten(clock: FakeClock) -> None:
    store, sums = SlowStore(clock), Sums()
    counts = replica(store, clock)
    sums.add(counts)
    exchanging = asyncio.create_task(counts.exchange())
    while not store.asked:
        await asyncio.sleep(0)
    sums.add(counts)
    store.answer.set()
    await exchanging
    assert (sums.sum(counts), counts.waiting) == (2, 1)
    await counts.exchange()
    assert (sums.sum(counts), counts.waiting) == (2, 0)


async def test_a_store_that_does_not_answer_is_given_up(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_counts, "EXCHANGE_SECONDS", 0.0)
    counts, sums = replica(SlowStore(clock), clock), Sums()
    sums.add(counts)
    with pytest.raises(TimeoutError):
        await counts.exchange()
    assert counts.waiting == 1


async def test_a_replica_goes_on_alone_while_the_store_is_away_and_settles_later(
    store: MemoryCountStore, clock: FakeClock
) -> None:
    one, other, sums = replica(store, clock), replica(store, clock), Sums()
    store.away = True
    for _ in range(3):
        sums.add(one)
        with pytest.raises(ProviderError):
            await one.exchange()
    assert (sums.sum(one), one.waiting) == (3, 1)
    store.away = False
    await one.exchange()
    sums.add(other)
    await other.exchange()
    assert sums.sum(other) == 4


async def test_an_exact_count_is_refused_while_the_store_is_away(store: MemoryCountStore, clock: FakeClock) -> None:
    store.away = True
    with pytest.raises(ProviderError):
        await replica(store, clock).update("k", lambda state, now: ((1.0,), 60.0, None))


async def test_what_the_store_may_have_charged_is_charged_again(store: MemoryCountStore, clock: FakeClock) -> None:
    counts, sums = replica(store, clock), Sums()
    sums.add(counts)
    store.loses_answers = True
    with pytest.raises(ProviderError):
        await counts.exchange()
    store.loses_answers = False
    await counts.exchange()
    assert sums.sum(counts) == 2


async def test_a_user_is_not_made_to_wait_for_all_that_passed_during_an_outage(
    store: MemoryCountStore, clock: FakeClock
) -> None:
    both = [replica(store, clock), replica(store, clock)]
    buckets = [Buckets(10.0, 20.0, counts=counts) for counts in both]
    for _ in range(600):
        for each in buckets:
            while not each.take("alice"):
                pass
        clock.advance(1)
    for counts in both:
        await counts.exchange()
    # Two times a burst and a second's worth, less what the bucket of all had.
    assert buckets[1].empty_for("alice") <= (2 * 30 - 30 + 1) / 10


async def test_many_keys_are_told_in_batches(store: MemoryCountStore, clock: FakeClock) -> None:
    counts, sums = replica(store, clock), Sums()
    for number in range(BATCH_KEYS * 2 + 1):
        sums.add(counts, f"k{number}")
    await counts.exchange()
    assert store.asked == [BATCH_KEYS, BATCH_KEYS, 1]


async def test_what_waits_for_the_store_is_bounded_and_the_oldest_makes_room(
    store: MemoryCountStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicated_counts, "MOST_WAITING", 10)
    counts, sums = replica(store, clock), Sums()
    store.away = True
    for number in range(25):
        sums.add(counts, f"k{number}")
        with pytest.raises(ProviderError):
            await counts.exchange()
    assert (counts.waiting, counts.dropped) == (10, 15)
    store.away = False
    await counts.exchange()
    other = replica(store, clock)
    for key in ("k14", "k15", "k24"):
        sums.add(other, key)
    await other.exchange()
    assert [sums.sum(other, key) for key in ("k14", "k15", "k24")] == [1, 2, 2]


async def test_the_parts_of_time_that_one_key_waits_with_are_bounded(store: MemoryCountStore, clock: FakeClock) -> None:
    counts, sums = replica(store, clock), Sums(wide=True)
    for part in range(1000):
        sums.add(counts, part=part)
    await counts.exchange()
    assert sums.sum(counts) == MOST_PARTS


async def test_a_wide_count_that_the_store_has_no_room_for_stays_with_the_machine(clock: FakeClock) -> None:
    store = MemoryCountStore(clock, wide_limit=1)
    one, other, sums = replica(store, clock), replica(store, clock), Sums(wide=True)
    for key in ("k1", "k2"):
        sums.add(one, key)
    await one.exchange()
    assert (one.dropped, one.waiting) == (1, 0)
    assert [sums.sum(one, key) for key in ("k1", "k2")] == [1, 1]
    sums.add(other, "k1")
    await other.exchange()


@pytest.mark.parametrize("seconds", [-7200.0, -1.0, 7200.0])
async def test_a_machine_whose_clock_is_wrong_goes_by_the_time_of_the_store(seconds: float) -> None:
    store_clock, clock = FakeClock(), FakeClock()
    clock.set_back(seconds)
    buckets = Buckets(1.0, 10.0, counts=(counts := replica(MemoryCountStore(store_clock), clock)))
    for _ in range(10):
        assert not buckets.take("alice")
    await counts.exchange()
    for each in (clock, store_clock):
        each.advance(5)
    # One more for what the bucket of all replicas holds beyond a burst.
    assert sum(not buckets.take("alice") for _ in range(20)) in (5, 6)
