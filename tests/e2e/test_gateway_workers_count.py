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

PODS = "/api/v1/namespaces/team/pods"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
WORKERS = 3


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice", "root")
    site.policy(role("team", "pods", User="alice"), role("", OURS, User="root"))
    return site


@contextmanager
def serving(site: Site, ca: trustme.CA, **sections: Any) -> Iterator[ServedGateway]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        with site.serving(listen={"workers": WORKERS}, upstreams=[site.impersonating(cluster)], **sections) as gateway:
            while gateway.probe("/readyz").status_code != 200:
                pass
            yield gateway


def statuses(gateway: ServedGateway, path: str, token: str | None = None, **options: Any) -> Counter[int]:
    """Each time on a connection of its own, which any worker may get."""
    return Counter(gateway.get(path, token, **options).status_code for _ in range(30))


def test_five_wrong_passwords_are_checked_and_not_five_by_each_worker(site: Site, ca: trustme.CA) -> None:
    with serving(site, ca) as gateway:
        assert statuses(gateway, "/auth", auth=("alice", "wrong")) == {401: 5, 429: 25}
        assert statuses(gateway, "/auth", auth=("alice", "wrong")) == {429: 30}


def test_a_lockout_outlives_a_reload(site: Site, ca: trustme.CA) -> None:
    with serving(site, ca) as gateway:
        statuses(gateway, "/auth", auth=("alice", "wrong"))
        gateway.signal(signal.SIGHUP)
        gateway.line("the configuration was reloaded", after=WORKERS - 1)
        assert statuses(gateway, "/auth", auth=("alice", "wrong")) == {429: 30}


def test_tokens_that_nobody_knows_are_counted_once(site: Site, ca: trustme.CA) -> None:
    with serving(site, ca, limits={"failuresPerMinute": 7}) as gateway:
        answered = statuses(gateway, PODS, "nobody")
        # One more for each that the bucket has got back meanwhile.
        assert 7 <= answered[401] <= 12
        assert answered[401] + answered[429] == 30


def test_the_rate_of_a_user_is_that_of_all_workers(site: Site, ca: trustme.CA) -> None:
    with serving(site, ca, limits={"requestsPerSecond": 0.01, "burst": 6}) as gateway:
        assert statuses(gateway, PODS, gateway.login("alice").token) == {200: 6, 429: 24}


def test_a_quota_is_that_of_all_workers(site: Site, ca: trustme.CA) -> None:
    quota = {"name": "reads", "type": "quota", "limits": [{"name": "reads", "count": 7, "per": "1h"}]}
    with serving(site, ca, admission=[quota]) as gateway:
        assert statuses(gateway, PODS, gateway.login("alice").token) == {200: 7, 403: 23}


def test_every_worker_explains_the_refusals_of_all(site: Site, ca: trustme.CA) -> None:
    with serving(site, ca) as gateway:
        refused = gateway.get("/api/v1/namespaces/other/pods", gateway.login("alice").token)
        path = f"/apis/ostiary.dev/v1/decisions/{refused.headers['audit-id']}"
        assert statuses(gateway, path, gateway.login("root").token) == {200: 30}
