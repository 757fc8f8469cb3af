"""Replicas and their databases die under load: what was acknowledged holds, and everything recovers by itself.

Each round kills one thing with SIGKILL. ``ROUNDS=50 pytest tests/e2e/test_replica_faults.py`` is the long run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import role
from tests.support.ledger import Ledger
from tests.support.postgresql_pair import PostgresPair, postgresql_pair
from tests.support.postgresql_store import store_section
from tests.support.redis import SENTINEL_NAME, RedisSite, redis_with_sentinels
from tests.support.replicas import RECOVERY_SECONDS, Replicas
from tests.support.waiting import until

PODS = "/api/v1/namespaces/team/pods"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
ROUNDS = int(os.environ.get("ROUNDS", "2"))
MAX_STALE = 5.0

pytestmark = [pytest.mark.slow, pytest.mark.needs("haproxy", "redis-server"), pytest.mark.timeout(120 + 60 * ROUNDS)]


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        yield cluster


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresPair]:
    with postgresql_pair() as pair:
        yield pair


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisSite]:
    with redis_with_sentinels(tmp_path_factory.mktemp("redis")) as site:
        yield site


def test_a_replica_dies(pair: PostgresPair, cluster: Cluster, ca: trustme.CA, tmp_path: Path) -> None:
    with _replicas(tmp_path, ca, cluster, store_section(*pair.addresses, folder=tmp_path)) as replicas:

        def kill_one(number: int) -> None:
            replica = replicas[number % len(replicas)]
            replica.kill()
            replica.start()
            replicas.all_in_service()

        _go_through(kill_one, replicas)


def test_the_primary_database_dies(pair: PostgresPair, cluster: Cluster, ca: trustme.CA, tmp_path: Path) -> None:
    with _replicas(tmp_path, ca, cluster, store_section(*pair.addresses, folder=tmp_path)) as replicas:
        _go_through(lambda number: pair.fail_over(), replicas)


def test_the_redis_primary_dies(redis: RedisSite, cluster: Cluster, ca: trustme.CA, tmp_path: Path) -> None:
    sentinel = {"name": SENTINEL_NAME, "addresses": list(redis.sentinel_addresses)}
    # All of them, so that whichever is promoted has everything. With one of two, the Sentinels may promote the other:
    # what they know of the replicas' progress is seconds old (docs/decisions/0043).
    store = {"type": "redis", "sentinel": sentinel, "waitReplicas": len(redis.servers) - 1}

    def kill_primary(number: int) -> None:
        old = redis.primary()
        old.kill()
        redis.wait_for_failover(old)
        old.start()
        redis.wait_for_replicas()

    with _replicas(tmp_path, ca, cluster, store) as replicas:
        _go_through(kill_primary, replicas)


def _go_through(kill: Callable[[int], None], replicas: Replicas) -> None:
    ledger = Ledger(replicas, PODS, user="alice", admin="root", max_stale=MAX_STALE)
    with ledger:
        ledger.progress()
        for number in range(ROUNDS):
            kill(number)
            ledger.progress()
        until(lambda: replicas.front.in_service() == len(replicas), seconds=RECOVERY_SECONDS)
    ledger.check()
    print(f"\n{ROUNDS} rounds: {ledger.summary()}")


@contextmanager
def _replicas(folder: Path, ca: trustme.CA, cluster: Cluster, store: Mapping[str, Any]) -> Iterator[Replicas]:
    replicas = Replicas(
        folder,
        ca,
        store=store,
        tokens={"maxStale": f"{MAX_STALE:.0f}s", "sessionsPerUser": 0},
        limits={"requestsPerSecond": 0, "failuresPerMinute": 0},
    )
    replicas.site.users("alice", "root")
    replicas.site.policy(role("team", "pods", User="alice"), role("", OURS, User="root"))
    replicas.use(upstreams=[replicas.site.impersonating(cluster)])
    with replicas:
        yield replicas
