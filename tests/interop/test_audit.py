"""One audit policy for the real API server and for the gateway: both record the same requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.interop.support.cluster import AUDIT_POLICY, RealCluster
from tests.interop.support.front import ClusterSite, Front, served

Event = tuple[str, str, int, str]

REQUESTS = [
    ("GET", "/api/v1/namespaces/team/configmaps"),
    ("GET", "/api/v1/namespaces/team/pods/none/log"),
    ("GET", "/apis/apps/v1/namespaces/team/deployments"),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/view"),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/namespaces/team/roles"),
    ("GET", "/api/v1/namespaces/other/secrets"),
    ("GET", "/api/v1/namespaces/unrecorded/configmaps"),
    ("DELETE", "/apis/batch/v1/namespaces/team/jobs/none"),
    ("GET", "/healthz"),
    ("GET", "/api"),
    ("GET", "/apis/apps/v1"),
    ("GET", "/no/such/path"),
    ("GET", "/apis/example.test/v1/things"),
]


@pytest.fixture
def front(cluster: RealCluster, tmp_path: Path) -> Iterator[Front]:
    if cluster.kubernetes.number < 36:
        pytest.skip('group: "*" came with 1.36')
    site = ClusterSite(tmp_path, cluster)
    (tmp_path / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
    audit = {"log": {"path": "audit.log"}, "policy": "audit-policy.yaml", "blocking": True}
    with served(site, upstreams=[site.by_front_proxy()], audit=audit) as gateway:
        yield Front(site, gateway, "localhost")


def recorded(events: list[dict[str, Any]], agent: str) -> list[Event]:
    """What counts of the events about requests of *agent*."""
    return [
        (event["verb"], event["requestURI"], event["responseStatus"]["code"], event["level"])
        for event in events
        if event.get("userAgent") == agent and event["stage"] == "ResponseComplete"
    ]


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_the_same_policy_records_the_same_requests(user: str, front: Front, cluster: RealCluster) -> None:
    """``group: "*"`` is every group: the core group, apps, and groups that nobody serves."""
    agent = f"audit-{user}-{front.gateway.port}"
    with front.http(user, headers=[("User-Agent", agent)]) as http:
        for method, path in REQUESTS:
            http.request(method, path)
    server = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
    ours = recorded(front.site.events(), agent)
    # What the gateway refuses never reaches the API server: of those only its own policy tells.
    expected = recorded(server, agent)
    missing = [event for event in expected if event not in ours]
    assert not missing, missing
    reached = {event[1] for event in expected}
    assert not [event for event in ours if event[2] not in (403, 404) and event[1] not in reached]
    resources = [path for _, path in REQUESTS if path.count("/") > 3 and "unrecorded" not in path]
    if user == "alice":
        assert {event[1] for event in ours} == {*resources, "/apis/example.test/v1/things"}
    else:
        assert ours == []
