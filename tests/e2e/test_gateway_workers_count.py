"""Several workers count once: failed passwords, limits, quotas and refusals, whichever of them is asked."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import ServedGateway, Site, role
from tests.support.waiting import until

PODS = "/api/v1/namespaces/team/pods"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
WORKERS = 2


@contextmanager
def serving(folder: Path, ca: trustme.CA, **sections: Any) -> Iterator[ServedGateway]:
    site = Site(folder, ca)
    site.users("alice", "root")
    site.policy(role("team", "pods", User="alice"), role("", OURS, User="root"))
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        with site.serving(listen={"workers": WORKERS}, upstreams=[site.impersonating(cluster)], **sections) as gateway:
            until(lambda: gateway.probe("/readyz").status_code == 200)
            yield gateway


@pytest.fixture(scope="module")
def gateway(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    """One with the limits that are set by default."""
    with serving(tmp_path_factory.mktemp("gateway"), ca) as gateway:
        yield gateway


def statuses(gateway: ServedGateway, path: str, token: str | None = None, **options: Any) -> Counter[int]:
    """Each time on a connection of its own, which any worker may get."""
    return Counter(gateway.get(path, token, **options).status_code for _ in range(30))


def test_every_worker_explains_the_refusals_of_all(gateway: ServedGateway) -> None:
    refused = gateway.get("/api/v1/namespaces/other/pods", gateway.login("alice").token)
    path = f"/apis/ostiary.dev/v1/decisions/{refused.headers['audit-id']}"
    assert statuses(gateway, path, gateway.login("root").token) == {200: 30}


def test_five_wrong_passwords_are_checked_and_not_five_by_each_worker_also_after_a_reload(
    gateway: ServedGateway,
) -> None:
    assert statuses(gateway, "/auth", auth=("alice", "wrong")) == {401: 5, 429: 25}
    gateway.signal(signal.SIGHUP)
    gateway.line("the configuration was reloaded", after=WORKERS - 1)
    assert statuses(gateway, "/auth", auth=("alice", "wrong")) == {429: 30}


def test_rates_and_quotas_are_those_of_all_workers(ca: trustme.CA, tmp_path: Path) -> None:
    quota = {"name": "reads", "type": "quota", "limits": [{"name": "reads", "count": 4, "per": "1h"}]}
    limits = {"requestsPerSecond": 0.01, "burst": 7, "failuresPerMinute": 7}
    with serving(tmp_path, ca, admission=[quota], limits=limits) as gateway:
        # The rate lets 7 through, and the quota 4 of them.
        assert statuses(gateway, PODS, gateway.login("alice").token) == {200: 4, 403: 3, 429: 23}
        unknown = statuses(gateway, PODS, "nobody")
        # One more for each that the bucket has got back meanwhile.
        assert 7 <= unknown[401] <= 12
        assert unknown[401] + unknown[429] == 30
