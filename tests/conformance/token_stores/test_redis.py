"""The Redis store keeps the contract of a token store: at one server, through Sentinels, and in a cluster.

Through Sentinels and in a cluster only `DeploymentContract` runs: connections, confirmation by a replica and the hash
slots of scripts differ there, and what a script does with its keys does not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count

import pytest

from ostiary_gateway.interfaces.shared_counts import SharedCounts
from ostiary_gateway.limits.replicated_counts import StoreCounts
from ostiary_gateway.stores.redis import replica_state
from ostiary_gateway.stores.redis.settings import ClusterSettings, RedisSettings, SentinelSettings
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.shared_counts import SharedCountsContract
from ostiary_gateway.testing.token_store import (
    OriginStoreContract,
    PortableStoreContract,
    ReplicaStoreContract,
    SessionPagesContract,
    SharedObjectStoreContract,
    SharedRecordStoreContract,
    SharedTokenStoreContract,
    StoredObjectCountsContract,
)
from tests.conformance.token_stores.deployment import DeploymentContract
from tests.conformance.token_stores.full_kind import FullKindContract
from tests.support.redis import (
    SENTINEL_NAME,
    RedisServer,
    RedisSite,
    patient_settings,
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


class Stores:
    """Two stores with the same prefix, and one with another. Give the fixture `settings`."""

    most_records = 500

    @pytest.fixture(autouse=True)
    def fewer_records_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(replica_state, "MOST_RECORDS", self.most_records)

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


class TestRedisTokenStore(
    Stores,
    SharedTokenStoreContract,
    SharedRecordStoreContract,
    SharedObjectStoreContract,
    StoredObjectCountsContract,
    FullKindContract,
    OriginStoreContract,
    ReplicaStoreContract,
    PortableStoreContract,
    SessionPagesContract,
):
    """Everything that the store keeps."""

    @pytest.fixture
    def settings(self, server: RedisServer, prefix: str) -> RedisSettings:
        return patient_settings(address=server.address, prefix=prefix)


class TestRedisThroughSentinels(Stores, DeploymentContract):
    """A replica confirms every sign-in and every revocation."""

    @pytest.fixture
    def settings(self, site: RedisSite, prefix: str) -> RedisSettings:
        sentinel = SentinelSettings(name=SENTINEL_NAME, addresses=site.sentinel_addresses)
        return patient_settings(sentinel=sentinel, prefix=prefix, wait_replicas=1)


class TestRedisCluster(Stores, DeploymentContract):
    """Each prefix has a slot of its own, so all three nodes have their turn."""

    @pytest.fixture
    def settings(self, nodes: list[RedisServer], prefix: str) -> RedisSettings:
        return patient_settings(cluster=ClusterSettings(addresses=(nodes[0].address,)), prefix=prefix)


class TestRedisCounts(SharedCountsContract):
    flood = 1_500

    @pytest.fixture(autouse=True)
    def fewer_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(replica_state, "MOST_COUNTS", 1_000)

    @pytest.fixture
    def settings(self, server: RedisServer, prefix: str) -> RedisSettings:
        return patient_settings(address=server.address, prefix=prefix)

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
