"""Three replicas of a gateway on Redis with Sentinels: under load the primary hangs, and is killed, again and again.

Nothing that was acknowledged is lost, no token is accepted later than ``maxStale`` after its revocation, and everything
recovers without a person. ``OSTIARY_ROUNDS`` says how many times; a few by default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import role
from tests.support.ledger import Ledger
from tests.support.redis import SENTINEL_NAME, RedisSite, redis_with_sentinels
from tests.support.replicas import Replicas

PODS = "/api/v1/namespaces/team/pods"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
MAX_STALE = 5.0
ROUNDS = int(os.environ.get("OSTIARY_ROUNDS", "2"))

pytestmark = [pytest.mark.slow, pytest.mark.needs("haproxy")]


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisSite]:
    with redis_with_sentinels(tmp_path_factory.mktemp("redis")) as site:
        yield site


@pytest.fixture(scope="module")
def replicas(
    ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory, cluster: Cluster, servers: RedisSite
) -> Iterator[Replicas]:
    sentinel = {"name": SENTINEL_NAME, "addresses": list(servers.sentinel_addresses)}
    built = Replicas(
        tmp_path_factory.mktemp("replicas"),
        ca,
        store={"type": "redis", "sentinel": sentinel, "waitReplicas": 1},
        tokens={"maxStale": f"{MAX_STALE:g}s", "sessionsPerUser": 0},
        limits={"requestsPerSecond": 0, "failuresPerMinute": 0},
    )
    built.site.users("alice", "root")
    built.site.policy(role("team", "pods", User="alice"), role("", OURS, User="root"))
    built.use(upstreams=[built.site.impersonating(cluster)])
    with built:
        yield built


@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_a_primary_that_dies_or_hangs_under_load_costs_nothing_that_was_acknowledged(
    replicas: Replicas, servers: RedisSite, tmp_path: Path
) -> None:
    with Ledger(replicas, PODS, user="alice", admin="root", max_stale=MAX_STALE) as ledger:
        ledger.progress()
        for number in range(ROUNDS):
            primary = servers.primary()
            if number % 2:
                primary.kill()
            else:
                primary.pause()
            try:
                servers.wait_for_failover(primary)
                ledger.progress()
            finally:
                if number % 2:
                    primary.start()
                else:
                    primary.resume()
            servers.wait_for_replicas()
            ledger.progress()
    ledger.check()
    assert ledger.revocations > ROUNDS
