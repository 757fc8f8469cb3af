"""The counts of a process, of the workers of a machine and of replicas keep the contract that others' are held to."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from ostiary_gateway.interfaces.shared_counts import SharedCounts, State
from ostiary_gateway.limits.counts import MachineCounts, MemoryCounts
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts, StoreCounts
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.shared_counts import SharedCountsContract, add_one
from tests.support.count_store import MemoryCountStore


class TestMemoryCounts(SharedCountsContract):
    @pytest.fixture
    def counts(self, clock: FakeClock) -> SharedCounts:
        return MemoryCounts(clock=clock)

    @pytest.fixture
    def other(self, counts: SharedCounts) -> SharedCounts:
        return counts


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = MachineCounts.create()
    yield descriptor
    os.close(descriptor)


class TestMachineCounts(SharedCountsContract):
    @pytest.fixture
    async def counts(self, memory: int, clock: FakeClock) -> AsyncIterator[SharedCounts]:
        counts = MachineCounts(memory, clock=clock)
        yield counts
        await counts.close()

    @pytest.fixture
    async def other(self, memory: int, clock: FakeClock) -> AsyncIterator[SharedCounts]:
        counts = MachineCounts(memory, clock=clock)
        yield counts
        await counts.close()


@pytest.fixture
def count_store(clock: FakeClock) -> MemoryCountStore:
    return MemoryCountStore(clock)


class TestStoreCounts(SharedCountsContract):
    @pytest.fixture
    def counts(self, count_store: MemoryCountStore) -> SharedCounts:
        return StoreCounts(count_store)

    @pytest.fixture
    def other(self, count_store: MemoryCountStore) -> SharedCounts:
        return StoreCounts(count_store)


def joined(store: MemoryCountStore, clock: FakeClock) -> ReplicatedCounts:
    counts = ReplicatedCounts(MemoryCounts(clock=clock), clock=clock)
    counts.join(store)
    return counts


class TestReplicatedCounts(SharedCountsContract):
    @pytest.fixture
    def counts(self, count_store: MemoryCountStore, clock: FakeClock) -> SharedCounts:
        return joined(count_store, clock)

    @pytest.fixture
    def other(self, count_store: MemoryCountStore, clock: FakeClock) -> SharedCounts:
        return joined(count_store, clock)


class TestReplicatedCountsWithoutReplicas(SharedCountsContract):
    @pytest.fixture
    def counts(self, clock: FakeClock) -> SharedCounts:
        return ReplicatedCounts(MemoryCounts(clock=clock), clock=clock)

    @pytest.fixture
    def other(self, counts: SharedCounts) -> SharedCounts:
        return counts


def count(memory: int, times: int) -> None:
    counts = MachineCounts(memory)
    for _ in range(times):
        counts.update_now("k", add_one)


def die_while_counting(memory: int) -> None:
    def die(state: State, now: float) -> tuple[State, float, None]:
        os._exit(1)

    MachineCounts(memory).update_now("k", die)


def test_processes_that_count_at_once_lose_nothing(memory: int) -> None:
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=count, args=(memory, 2000)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert MachineCounts(memory).update_now("k", add_one) == 8001


def test_a_process_that_dies_while_it_counts_holds_up_nobody(memory: int) -> None:
    fork = multiprocessing.get_context("fork")
    count(memory, 1)
    worker = fork.Process(target=die_while_counting, args=(memory,))
    worker.start()
    worker.join(30)
    assert worker.exitcode == 1
    assert MachineCounts(memory).update_now("k", add_one) == 2
