"""Counting with other replicas in the background: at once, after a pause, alone without a store, and at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeVar

import pytest

from ostiary_gateway.interfaces.shared_counts import Change
from ostiary_gateway.interfaces.store_capabilities import Counted
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.server import process_state as count_exchange
from ostiary_gateway.server.process_state import CountExchange
from ostiary_gateway.testing import FakeClock
from tests.support.count_store import MemoryCountStore

T = TypeVar("T")


class Replica:
    def __init__(self, store: MemoryCountStore, clock: FakeClock) -> None:
        self.counts = ReplicatedCounts(MemoryCounts(clock=clock), clock=clock)
        self.counts.join(store)
        self.metrics = Metrics()
        self.exchange = CountExchange(self.counts, self.metrics, clock)
        self.buckets = Buckets(1.0, 10.0, counts=self.counts, name="requests")

    def figures(self) -> dict[str, object]:
        snapshot = self.metrics.snapshot()
        names = ("counts_alone", "counts_waiting", "counts_dropped_total")
        return {name: snapshot[f"ostiary_gateway_{name}"]["series"][0][1] for name in names}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryCountStore:
    return MemoryCountStore(clock)


@pytest.fixture
def replica(store: MemoryCountStore, clock: FakeClock) -> Replica:
    return Replica(store, clock)


async def test_the_first_request_is_told_at_once_and_later_ones_together(
    replica: Replica, store: MemoryCountStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    may_go_on = asyncio.Event()
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        if not seconds:
            return await sleep(0)
        pauses.append(seconds)
        await may_go_on.wait()

    monkeypatch.setattr(asyncio, "sleep", pause)
    running = asyncio.create_task(replica.exchange.run())
    replica.buckets.take("alice")
    while not pauses:
        await sleep(0)
    assert store.asked == [1]
    for user in ("alice", "bob", "alice"):
        replica.buckets.take(user)
    assert store.asked == [1]
    may_go_on.set()
    while len(pauses) < 2:
        await sleep(0)
    assert store.asked == [1, 2]
    assert pauses == [count_exchange.PAUSE_SECONDS] * 2
    running.cancel()


async def test_a_store_that_is_away_is_told_once_and_again_when_it_is_back(
    replica: Replica, store: MemoryCountStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    store.away = True
    with caplog.at_level(logging.WARNING, "ostiary.gateway"):
        for _ in range(20):
            replica.buckets.take("alice")
            await replica.exchange.exchange()
            clock.advance(0.5)
        assert replica.figures() == {"counts_alone": 1, "counts_waiting": 1, "counts_dropped_total": 0}
        store.away = False
        await replica.exchange.exchange()
    assert replica.figures() == {"counts_alone": 0, "counts_waiting": 0, "counts_dropped_total": 0}
    assert [record.message for record in caplog.records] == [
        "the token store keeps no counts at the moment: this replica counts requests alone",
        "the replicas count together again",
    ]
    assert vars(caplog.records[0])["cause"] == "it is away"
    assert vars(caplog.records[1])["left_out"] == 19


async def test_requests_are_limited_while_the_store_is_away(replica: Replica, store: MemoryCountStore) -> None:
    store.away = True
    assert sum(not replica.buckets.take("alice") for _ in range(30)) == 10


async def test_what_waits_is_settled_when_the_worker_stops(
    replica: Replica, store: MemoryCountStore, clock: FakeClock
) -> None:
    for _ in range(10):
        replica.buckets.take("alice")
    await replica.exchange.finish()
    next_one = Replica(store, clock)
    next_one.buckets.take("alice")
    await next_one.exchange.exchange()
    assert next_one.buckets.empty_for("alice")


class SlowStore(MemoryCountStore):
    """It counts, and its answer waits for `answer`."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.answer = asyncio.Event()

    async def update_counts(
        self, changes: Sequence[tuple[str, Change[T]]], *, wide: bool = False
    ) -> list[Counted[T] | None]:
        answers = await super().update_counts(changes, wide=wide)
        await self.answer.wait()
        return answers


async def test_a_reload_in_the_middle_of_an_exchange_charges_nothing_twice(clock: FakeClock) -> None:
    store = SlowStore(clock)
    replica = Replica(store, clock)
    running = asyncio.create_task(replica.exchange.run())
    replica.buckets.take("alice")
    while not store.asked:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    finishing = asyncio.create_task(replica.exchange.finish())
    store.answer.set()
    await finishing
    assert (store.asked, replica.counts.waiting) == ([1], 0)


async def test_a_worker_does_not_wait_long_for_a_store_that_does_not_answer(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_exchange, "LAST_EXCHANGE_SECONDS", 0.0)
    replica = Replica(SlowStore(clock), clock)
    replica.buckets.take("alice")
    await replica.exchange.finish()
    assert replica.counts.waiting == 1


async def test_a_worker_stops_although_the_store_is_away(replica: Replica, store: MemoryCountStore) -> None:
    replica.buckets.take("alice")
    store.away = True
    await replica.exchange.finish()
    assert replica.counts.waiting == 1
