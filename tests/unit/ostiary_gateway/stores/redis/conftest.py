"""One Redis server for all tests of a module, a prefix for each, and stores that are closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count

import pytest

from ostiary_gateway.stores.redis.settings import RedisSettings
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.redis import RedisServer, patient_settings, redis_server

_numbers = count()

Open = Callable[..., RedisTokenStore]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis") / "server") as server:
        yield server


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def settings(server: RedisServer) -> RedisSettings:
    return patient_settings(address=server.address, prefix=f"test-{next(_numbers)}")


@pytest.fixture
async def open_store() -> AsyncIterator[Open]:
    """Opens stores, and closes them after the test."""
    stores: list[RedisTokenStore] = []

    def open_one(settings: RedisSettings, **options: object) -> RedisTokenStore:
        stores.append(RedisTokenStore(settings, **options))  # type: ignore[arg-type]
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()


@pytest.fixture
def store(open_store: Open, settings: RedisSettings, clock: FakeClock) -> RedisTokenStore:
    return open_store(settings, clock=clock)


@pytest.fixture
def other(open_store: Open, settings: RedisSettings, clock: FakeClock) -> RedisTokenStore:
    return open_store(settings, clock=clock)
