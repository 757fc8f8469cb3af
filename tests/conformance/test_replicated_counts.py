"""Replicas that settle their counts at the same time, through each store that keeps counts: nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.shared_counts import State
from ostiary_gateway.interfaces.store_capabilities import CountStore
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.limits.rates import LATEST_CHARGE_SECONDS, Buckets
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts, stored_key
from ostiary_gateway.providers.quota import LimitWindows
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.count_store import MemoryCountStore
from tests.support.postgresql_store import settings_for
from tests.support.redis import RedisServer, patient_settings, redis_server

REPLICAS = 4
USERS = 25
ROUNDS = 8
BURST = 10_000.0
RATE = 1e-6
_numbers = count()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis") / "server") as server:
        yield server


@pytest.fixture(params=["memory", "postgresql", "redis"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[list[CountStore]]:
    """The same counts, as each replica has them, and one more to look at them."""
    if request.param == "memory":
        memory = MemoryCountStore(clock)
        yield [memory] * (REPLICAS + 1)
        return
    open_store = _opener(request, tmp_path, clock)
    opened = [open_store() for _ in range(REPLICAS + 1)]
    yield list(opened)
    for store in opened:
        await store.close()


def _opener(
    request: pytest.FixtureRequest, folder: Path, clock: FakeClock
) -> Callable[[], PostgresqlTokenStore | RedisTokenStore]:
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        settings = patient_settings(address=server.address, prefix=f"replicated-{next(_numbers)}")
        return lambda: RedisTokenStore(settings, clock=clock)
    place = settings_for(request.getfixturevalue("postgresql_15"), folder=folder)
    return lambda: PostgresqlTokenStore(place, clock=clock, database_clock=clock)


class Replica:
    def __init__(self, store: CountStore, clock: FakeClock) -> None:
        self.counts = ReplicatedCounts(MemoryCounts(clock=clock), clock=clock)
        self.counts.join(store)
        self.buckets = Buckets(RATE, BURST, counts=self.counts, name="requests")
        self.windows = LimitWindows(1_000_000, 3600.0, self.counts, "staff/creations")


async def test_replicas_that_exchange_at_once_lose_nothing(stores: list[CountStore], clock: FakeClock) -> None:
    *shared, onlooker = stores
    replicas = [Replica(store, clock) for store in shared]
    for _ in range(ROUNDS):
        for replica in replicas:
            for user in range(USERS):
                assert not replica.buckets.take(f"user-{user}")
                assert not replica.windows.add(f"user-{user}")[0]
        await asyncio.gather(*(replica.counts.exchange() for replica in replicas))
    for replica in replicas:
        assert replica.counts.waiting == replica.counts.dropped == 0
    taken = REPLICAS * ROUNDS
    tokens = await states(onlooker, "bucket/requests/")
    assert [round(state[0], 3) for state in tokens] == [BURST - taken] * USERS
    assert [sum(state[1:]) for state in await states(onlooker, "quota/staff/creations/", wide=True)] == [taken] * USERS
    assert RATE * LATEST_CHARGE_SECONDS < 0.001, "the slack would show"


async def states(store: CountStore, prefix: str, *, wide: bool = False) -> list[State]:
    def look(state: State, now: float) -> tuple[State, float, None]:
        return state, 60.0, None

    keys = [stored_key(f"{prefix}user-{user}") for user in range(USERS)]
    return [each.state for each in await store.update_counts([(key, look) for key in keys], wide=wide) if each]
