"""The Redis store keeps the contract of a token store: at one server, through Sentinels, and in a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count

import pytest

from ostiary.core.counting.store_counts import StoreCounts
from ostiary.interfaces.shared_counts import SharedCounts
from ostiary.plugins.redis.settings import ClusterSettings, RedisSettings, SentinelSettings
from ostiary.plugins.redis.token_store import RedisTokenStore
from ostiary.testing import FakeClock
from ostiary.testing.shared_counts import SharedCountsContract
from ostiary.testing.token_store import (
    OriginStoreContract,
    PortableStoreContract,
    ReplicaStoreContract,
    SharedObjectStoreContract,
    SharedRecordStoreContract,
    SharedTokenStoreContract,
)
from tests.conformance.token_stores.full_kind import FullKindContract
from tests.support.redis import (
    SENTINEL_NAME,
    RedisServer,
    RedisSite,
    redis_cluster,
    redis_server,
    redis_with_sentinels,
)

_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis") / "server") as server:
        yield server


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisSite]:
    with redis_with_sentinels(tmp_path_factory.mktemp("redis")) as site:
        yield site


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with redis_cluster(tmp_path_factory.mktemp("redis")) as nodes:
        yield nodes


@pytest.fixture
def prefix() -> str:
    return f"test-{next(_numbers)}"


class RedisContract(
    SharedTokenStoreContract,
    SharedRecordStoreContract,
    SharedObjectStoreContract,
    FullKindContract,
    OriginStoreContract,
    ReplicaStoreContract,
    PortableStoreContract,
):
    """Everything that the store keeps. Give the fixture `settings`."""

    @pytest.fixture
    async def store(self, clock: FakeClock, settings: RedisSettings) -> AsyncIterator[RedisTokenStore]:
        store = RedisTokenStore(settings, clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, clock: FakeClock, settings: RedisSettings) -> AsyncIterator[RedisTokenStore]:
        store = RedisTokenStore(settings, clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def empty(self, clock: FakeClock, settings: RedisSettings) -> AsyncIterator[RedisTokenStore]:
        store = RedisTokenStore(replace(settings, prefix=f"{settings.prefix}-empty"), clock=clock)
        yield store
        await store.close()


class TestRedisTokenStore(RedisContract):
    @pytest.fixture
    def settings(self, server: RedisServer, prefix: str) -> RedisSettings:
        return RedisSettings(address=server.address, prefix=prefix, timeout=60.0)


class TestRedisThroughSentinels(RedisContract):
    """A replica confirms every sign-in and every revocation."""

    @pytest.fixture
    def settings(self, site: RedisSite, prefix: str) -> RedisSettings:
        sentinel = SentinelSettings(name=SENTINEL_NAME, addresses=site.sentinel_addresses)
        return RedisSettings(sentinel=sentinel, prefix=prefix, wait_replicas=1, timeout=60.0, wait_timeout=30.0)


class TestRedisCluster(RedisContract):
    """Each prefix has a slot of its own, so all three nodes have their turn."""

    @pytest.fixture
    def settings(self, nodes: list[RedisServer], prefix: str) -> RedisSettings:
        return RedisSettings(cluster=ClusterSettings(addresses=(nodes[0].address,)), prefix=prefix, timeout=60.0)


class TestRedisCounts(SharedCountsContract):
    @pytest.fixture
    def settings(self, server: RedisServer, prefix: str) -> RedisSettings:
        return RedisSettings(address=server.address, prefix=prefix, timeout=60.0)

    @pytest.fixture
    async def counts(self, clock: FakeClock, settings: RedisSettings) -> AsyncIterator[SharedCounts]:
        store = RedisTokenStore(settings, clock=clock)
        yield StoreCounts(store)
        await store.close()

    @pytest.fixture
    async def other(self, clock: FakeClock, settings: RedisSettings) -> AsyncIterator[SharedCounts]:
        store = RedisTokenStore(settings, clock=clock)
        yield StoreCounts(store)
        await store.close()
