"""Replicas that take from one bucket: how much too much they take together at worst, and never too little."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.limits.counts import MachineCounts, MemoryCounts
from ostiary_gateway.limits.rates import LATEST_CHARGE_SECONDS, Buckets
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts
from ostiary_gateway.testing import FakeClock
from tests.support.count_store import MemoryCountStore

STEP = 0.05
PAUSE = 0.5
MANY = 1_000_000


@dataclass
class Process:
    """One worker of a replica. It exchanges as soon as something waits, and then not for `PAUSE`."""

    clock: FakeClock
    counts: ReplicatedCounts
    buckets: Buckets
    next_exchange: float

    async def exchange_at(self, now: float) -> None:
        if now >= self.next_exchange and self.counts.waiting:
            await self.counts.exchange()
            self.next_exchange = now + PAUSE - STEP


@dataclass
class Fleet:
    """Processes over one store, and every moment at which one of them took a token."""

    rate: float
    burst: float
    store_clock: FakeClock = field(default_factory=FakeClock)
    processes: list[Process] = field(default_factory=list)
    taken_at: list[float] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.store = MemoryCountStore(self.store_clock)

    def add(self, local: MemoryCounts | MachineCounts, clock: FakeClock, *, phase: float = 0.0) -> None:
        counts = ReplicatedCounts(local, clock=clock)
        counts.join(self.store)
        buckets = Buckets(self.rate, self.burst, counts=counts, name="requests")
        self.processes.append(Process(clock, counts, buckets, phase))

    async def step(self, demand: Sequence[int]) -> list[bool]:
        """Each process takes as much as *demand* says, if it can; returns which of them refused."""
        refused = [not self._take_all(process, wanted) for process, wanted in zip(self.processes, demand, strict=True)]
        for process in self.processes:
            await process.exchange_at(self.now)
        self.now += STEP
        for clock in {id(clock): clock for clock in self._clocks()}.values():
            clock.advance(STEP)
        return refused

    def _take_all(self, process: Process, wanted: int) -> bool:
        for _ in range(wanted):
            if process.buckets.take("alice"):
                return False
            self.taken_at.append(self.now)
        return True

    def _clocks(self) -> Iterator[FakeClock]:
        yield self.store_clock
        yield from (process.clock for process in self.processes)

    @property
    def most_above_rate(self) -> float:
        """The most that was taken in any time, less what the rate allows in it."""
        level = most = 0.0
        for before, at in pairwise([0.0, *self.taken_at]):
            level = max(0.0, level - self.rate * (at - before)) + 1
            most = max(most, level)
        return most

    def most_allowed_above_rate(self, unknown: float) -> float:
        """What the reference says; *unknown* is what others may have taken of which a replica does not know."""
        return self.burst + self.rate * LATEST_CHARGE_SECONDS + unknown


def replicas(count: int, rate: float, burst: float, *, skew: float = 0.0) -> Fleet:
    fleet = Fleet(rate, burst)
    for number in range(count):
        clock = FakeClock()
        clock.set_back(skew * number)
        fleet.add(MemoryCounts(clock=clock), clock, phase=number * PAUSE / count)
    return fleet


DEMAND = st.sampled_from([0, 0, 1, 7, MANY])


@given(
    data=st.data(),
    count=st.integers(1, 4),
    rate=st.sampled_from([0.5, 3.0, 50.0]),
    burst=st.sampled_from([1.0, 10.0, 60.0]),
    skew=st.sampled_from([0.0, 0.2, -3600.0, 3600.0]),
)
@settings(max_examples=150, deadline=None)
def test_replicas_never_take_more_than_the_reference_says(
    data: st.DataObject, count: int, rate: float, burst: float, skew: float
) -> None:
    spans = data.draw(st.lists(st.tuples(st.integers(1, 30), st.tuples(*[DEMAND] * count)), max_size=12))

    async def run() -> Fleet:
        fleet = replicas(count, rate, burst, skew=skew)
        for steps, demand in spans:
            for _ in range(steps):
                await fleet.step(demand)
        return fleet

    fleet = asyncio.run(run())
    unknown = (count - 1) * (burst + rate * PAUSE)
    assert fleet.most_above_rate <= fleet.most_allowed_above_rate(unknown) + 1e-6


@pytest.mark.parametrize(("rate", "burst"), [(50.0, 10.0), (50.0, 200.0), (2.0, 10.0)])
async def test_on_average_the_rate_is_that_of_one_bucket(rate: float, burst: float) -> None:
    """Three replicas that are asked for all that they can give: what was too much at first is paid back."""
    fleet = replicas(3, rate, burst)
    while fleet.now < 60:
        await fleet.step([MANY] * 3)
    assert len(fleet.taken_at) <= burst + rate * fleet.now + rate * LATEST_CHARGE_SECONDS + 3 * rate * PAUSE
    assert len(fleet.taken_at) >= rate * fleet.now


async def test_two_replicas_give_one_user_a_burst_each_and_then_make_up_for_it() -> None:
    fleet = replicas(2, 1.0, 20.0)
    await fleet.step([MANY, MANY])
    assert len(fleet.taken_at) == 40
    while fleet.now < 18:
        await fleet.step([MANY, MANY])
    assert len(fleet.taken_at) == 41, "one that was told before the other took anything has one more try"


@given(
    data=st.data(),
    count=st.integers(1, 3),
    rate=st.sampled_from([0.5, 3.0, 50.0]),
    burst=st.sampled_from([1.0, 10.0, 60.0]),
)
@settings(max_examples=150, deadline=None)
def test_replicas_refuse_nothing_that_one_bucket_would_give(
    data: st.DataObject, count: int, rate: float, burst: float
) -> None:
    spans = data.draw(st.lists(st.tuples(st.integers(1, 30), st.tuples(*[DEMAND] * count)), max_size=8))

    async def run() -> None:
        fleet = replicas(count, rate, burst)
        for steps, demand in spans:
            for _ in range(steps):
                refused = await fleet.step(demand)
                if any(refused):
                    assert tokens_of_one_bucket(fleet, at=fleet.now - STEP) < 1 + 1e-6

    asyncio.run(run())


def tokens_of_one_bucket(fleet: Fleet, *, at: float) -> float:
    """What one bucket would have left that everything was taken from at once, also what it did not have."""
    tokens = fleet.burst
    for before, now in pairwise([0.0, *fleet.taken_at, at]):
        tokens = min(fleet.burst, tokens + fleet.rate * (now - before)) - 1
    return tokens + 1


async def test_a_single_replica_with_a_small_burst_has_its_whole_rate() -> None:
    """What fills the bucket between two exchanges is more than the bucket holds, and still counts."""
    fleet = replicas(1, 100.0, 10.0)
    while fleet.now < 20:
        refused = await fleet.step([5])
        assert refused == [False]


@pytest.fixture
def memories() -> Iterator[list[int]]:
    descriptors = [MachineCounts.create() for _ in range(2)]
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("pattern", [(MANY,) * 6, (MANY, 0, 0, 0, 0, 0), (0, MANY, 0, MANY, 1, 0)])
async def test_more_workers_on_a_machine_do_not_take_more(memories: list[int], pattern: tuple[int, ...]) -> None:
    """However many workers there are: none of them is ignorant of what the others on its machine took."""
    fleet = Fleet(20.0, 40.0)
    for memory in memories:
        clock = FakeClock()
        for number in range(3):
            fleet.add(MachineCounts(memory, clock=clock), clock, phase=number * PAUSE / 3)
    turn = list(pattern)
    while fleet.now < 20:
        for _ in range(7):
            await fleet.step(turn)
        turn = turn[1:] + turn[:1]
    unknown = len(memories) * (fleet.burst + 2 * fleet.rate * PAUSE)
    assert fleet.most_above_rate <= fleet.most_allowed_above_rate(unknown) + 1e-6
    for process in fleet.processes:
        await process.counts.close()
