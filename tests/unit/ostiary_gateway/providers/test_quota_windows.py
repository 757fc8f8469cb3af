"""The windows of a limit between replicas: what each may admit before it hears of others, and what is taken back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts
from ostiary_gateway.providers.quota import PARTS, LimitWindows
from ostiary_gateway.testing import FakeClock
from tests.support.count_store import MemoryCountStore

SPAN = 60.0
STEP = 0.25
PAUSE = 0.5


@dataclass
class Replica:
    clock: FakeClock
    counts: ReplicatedCounts
    windows: LimitWindows
    next_exchange: float = 0.0

    async def exchange_at(self, now: float) -> None:
        if now >= self.next_exchange and self.counts.waiting:
            await self.counts.exchange()
            self.next_exchange = now + PAUSE - STEP


def replica(store: MemoryCountStore, clock: FakeClock, *, count: int) -> Replica:
    counts = ReplicatedCounts(MemoryCounts(clock=clock), clock=clock)
    counts.join(store)
    return Replica(clock, counts, LimitWindows(count, SPAN, counts, "staff/creations"))


def admit(replica: Replica) -> bool:
    return not replica.windows.add("alice")[0]


def admit_up_to(replica: Replica, most: int) -> int:
    admitted = 0
    while admitted < most and admit(replica):
        admitted += 1
    return admitted


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pair(clock: FakeClock) -> list[Replica]:
    store = MemoryCountStore(clock)
    return [replica(store, clock, count=5) for _ in range(2)]


async def test_what_one_replica_has_admitted_the_other_does_not_admit_again(pair: list[Replica]) -> None:
    one, other = pair
    assert [admit(one) for _ in range(4)] == [True] * 4
    await one.counts.exchange()
    assert admit(other)
    await other.counts.exchange()
    assert not admit(other)
    assert admit(one), "it has not heard of the other yet"
    await one.counts.exchange()
    assert not admit(one)


async def test_a_refused_request_does_not_count_for_other_replicas_either(pair: list[Replica]) -> None:
    one, other = pair
    for _ in range(4):
        admit(one)
    await one.counts.exchange()
    for _ in range(3):
        one.windows.settle("alice", refused=True)
    await one.counts.exchange()
    admit(other)
    await other.counts.exchange()
    assert [admit(other) for _ in range(5)] == [True] * 3 + [False] * 2


async def test_what_is_taken_back_before_it_was_told_is_nothing(pair: list[Replica]) -> None:
    one, other = pair
    admit(one)
    one.windows.take_back("alice")
    await one.counts.exchange()
    admit(other)
    await other.counts.exchange()
    assert [admit(other) for _ in range(5)] == [True] * 4 + [False]


async def test_the_span_of_all_replicas_slides(pair: list[Replica], clock: FakeClock) -> None:
    one, other = pair
    for _ in range(5):
        admit(one)
    await one.counts.exchange()
    clock.advance(SPAN + SPAN / PARTS)
    assert admit(other)
    await other.counts.exchange()
    assert [admit(other) for _ in range(5)] == [True] * 4 + [False]


@pytest.mark.parametrize("seconds", [-7200.0, 7200.0])
async def test_a_clock_that_the_store_corrects_forgets_nothing_that_the_store_knows(seconds: float) -> None:
    store_clock, clock = FakeClock(), FakeClock()
    clock.set_back(seconds)
    wrong = replica(MemoryCountStore(store_clock), clock, count=5)
    assert [admit(wrong) for _ in range(3)] == [True] * 3
    await wrong.counts.exchange()
    assert admit(wrong)
    await wrong.counts.exchange()
    assert sum(admit(wrong) for _ in range(9)) <= 4


async def test_a_worker_that_shares_a_table_with_one_whose_clock_was_corrected_goes_on(clock: FakeClock) -> None:
    counts = MemoryCounts(clock=clock)
    windows = LimitWindows(2, SPAN, counts, "staff/creations")
    now = 10_000.0
    counts.read_time_from(lambda: now)
    assert not windows.add("alice")[0]
    now = 1000.0
    assert not windows.add("alice")[0]
    assert windows.add("alice")[0]


@given(
    data=st.data(),
    count=st.integers(1, 4),
    limit=st.sampled_from([1, 5, 20]),
)
@settings(max_examples=150, deadline=None)
def test_each_further_replica_admits_at_most_what_reaches_it_between_two_exchanges(
    data: st.DataObject, count: int, limit: int
) -> None:
    wanted = st.sampled_from([0, 0, 1, 3, 1000])
    spans = data.draw(st.lists(st.tuples(st.integers(1, 120), st.tuples(*[wanted] * count)), max_size=8))

    async def run() -> tuple[list[float], float]:
        store_clock = FakeClock()
        store = MemoryCountStore(store_clock)
        replicas = [replica(store, FakeClock(), count=limit) for _ in range(count)]
        admitted_at: list[float] = []
        now, most = 0.0, 0.0
        for steps, demand in spans:
            for _ in range(steps):
                for each, wish in zip(replicas, demand, strict=True):
                    admitted_at += [now] * admit_up_to(each, wish)
                    most = max(most, float(min(wish, limit)))
                for each in replicas:
                    await each.exchange_at(now)
                now += STEP
                for clock in (store_clock, *(each.clock for each in replicas)):
                    clock.advance(STEP)
        return admitted_at, most

    admitted_at, most = asyncio.run(run())
    # What reaches a replica in the two steps of a pause, and at the moment at which it ends.
    reaching = min(limit, most * (PAUSE / STEP + 1))
    for begin in set(admitted_at):
        within = sum(begin <= at < begin + SPAN for at in admitted_at)
        assert within <= limit + (count - 1) * reaching


# --- what a window makes of what replicas tell ---

WINDOWS = LimitWindows(5, SPAN, MemoryCounts(), "staff/creations")
NOW = 6000.0
PART = int(NOW // (SPAN / PARTS))


def test_what_is_told_counts_in_the_part_in_which_it_happened() -> None:
    state, seconds = WINDOWS.charge((), NOW, {PART - 2: 3.0, PART: 1.0})
    assert list(state) == [PART - 2, 3.0, 0.0, 1.0]
    assert seconds == SPAN + SPAN / PARTS
    assert WINDOWS.charge(state, NOW, {PART - 1: 2.0})[0] == (PART - 2, 3.0, 2.0, 1.0)


def test_what_is_told_after_its_time_is_over_counts_for_nothing() -> None:
    assert WINDOWS.charge((), NOW, {PART - PARTS - 1: 3.0}) == ((), 0.0)
    assert WINDOWS.charge((), NOW, {PART - PARTS: 3.0})[0] == (PART - PARTS, 3.0)


def test_what_happened_a_moment_later_by_another_clock_counts_now() -> None:
    assert WINDOWS.charge((), NOW, {PART + 5: 3.0})[0] == (PART, 3.0)


def test_more_is_not_taken_back_than_there_is() -> None:
    assert WINDOWS.charge((PART, 2.0), NOW, {PART: -5.0}) == ((), 0.0)
    assert WINDOWS.charge((PART, 2.0), NOW, {PART - 1: -5.0})[0][-1] == 2.0


def test_what_was_counted_while_the_store_was_asked_is_added_to_its_answer() -> None:
    assert WINDOWS.adopt((PART, 9.0), NOW, shared=(PART, 2.0), unsettled={PART: 1.0})[0] == (PART, 3.0)
