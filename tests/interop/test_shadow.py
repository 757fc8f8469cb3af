"""Shadow mode before the real API server: the two agree wherever the policy is the same, and a difference is seen.

And roles from use: what is suggested, the real cluster takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import httpx
import pytest

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import ClusterSite, Front, served
from tests.interop.support.people import binding, group
from tests.support.metrics import samples
from tests.support.waiting import until

USERS = ("alice", "bob", "carol", "mallory")
REQUESTS = [
    *product(
        ("GET",), [f"/api/v1/namespaces/{space}/{kind}" for space in ("team", "other") for kind in ("pods", "secrets")]
    ),
    ("GET", "/api/v1/namespaces/team/pods?labelSelector=app%3Dweb"),
    ("GET", "/api/v1/namespaces/team/pods?fieldSelector=metadata.name%3Dweb"),
    ("GET", "/api/v1/namespaces/other/endpoints/nothing"),
    ("GET", "/api/v1/namespaces/team/pods/none/log"),
    ("DELETE", "/apis/apps/v1/namespaces/team/deployments/none"),
    ("GET", "/api/v1/nodes"),
    ("GET", "/api/v1/namespaces/team"),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("GET", "/version"),
    ("GET", "/metrics"),
]
NAME = "ostiary_gateway_shadow_reviews_total"


@pytest.fixture
def front(cluster: RealCluster, tmp_path: Path) -> Iterator[Front]:
    site = ClusterSite(tmp_path, cluster)
    upstreams = [site.by_impersonation(shadow={"share": 1, "perSecond": 1000})]
    site.write_config(**site.sections(upstreams=upstreams))
    role = site.give_role(name="ostiary-gateway-shadow")
    assert role
    with served(site, upstreams=upstreams) as gateway:
        yield Front(site, gateway, "localhost")


def outcomes(front: Front) -> dict[str, float]:
    page = httpx.get(f"{front.gateway.health}/metrics", trust_env=False, timeout=30).content
    return {dict(labels)["outcome"]: value for (name, labels), value in samples(page).items() if name == NAME}


def ask(front: Front, user: str) -> list[int]:
    with front.http(user) as http:
        return [http.request(method, path).status_code for method, path in REQUESTS]


def test_the_two_agree_over_a_grid_and_one_difference_is_seen(front: Front, cluster: RealCluster) -> None:
    checked = front.site.ostiary("serve", "--check", "--online", "--config", "gateway.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    statuses = {user: ask(front, user) for user in USERS}
    total = len(USERS) * len(REQUESTS)
    until(lambda: sum(outcomes(front).values()) == total)
    assert outcomes(front) == {"agree": total}
    assert 403 in statuses["bob"]
    assert 200 in statuses["bob"]

    extra = binding("shadow-extra", "view", group("readers"), namespace="other")
    cluster.apply(extra)
    try:
        # The API server itself learns of it a moment later.
        def sees_it() -> bool:
            with front.http("bob") as http:
                assert http.get("/api/v1/namespaces/other/pods").status_code == 403
            return outcomes(front).get("only_cluster_allows", 0) > 0

        until(sees_it)
    finally:
        cluster.admin.output("delete", "rolebinding", "shadow-extra", "--namespace", "other")
    until(lambda: b"only_cluster_allows" in front.site.audit_log.read_bytes())
    told = front.site.ostiary("policy", "shadow", "--config", "gateway.yaml", "-o", "json", "audit.log")
    assert told.returncode == 1, told.stderr
    (disagreement,) = json.loads(told.stdout)["disagreements"]
    assert (disagreement["allows"], disagreement["user"], disagreement["namespace"]) == ("cluster", "bob", "other")
    assert 'RoleBinding "shadow-extra/other"' in disagreement["clusterReason"]


def test_the_cluster_takes_the_roles_that_are_suggested(front: Front, cluster: RealCluster) -> None:
    ask(front, "bob")
    until(lambda: front.site.audit_log.read_bytes().count(b'"stage":"ResponseComplete"') >= len(REQUESTS))
    suggested = front.site.ostiary("policy", "suggest", "--user", "bob", "--names", "-o", "yaml", "audit.log")
    assert suggested.returncode == 0, suggested.stderr
    taken = cluster.admin.output("apply", "--dry-run=server", "-f", "-", stdin=suggested.stdout)
    assert taken.count("created (server dry run)") == suggested.stdout.count("apiVersion: ") > 0


def test_the_log_of_the_api_server_itself_can_be_read(cluster: RealCluster, tmp_path: Path) -> None:
    site = ClusterSite(tmp_path, cluster)
    upstreams = [site.by_front_proxy()]
    with served(site, upstreams=upstreams) as gateway:
        ask(Front(site, gateway, "localhost"), "alice")
    told = site.ostiary("policy", "suggest", "--user", "alice", "-o", "json", str(cluster.audit_log))
    assert told.returncode == 0, told.stderr
    (subject,) = json.loads(told.stdout)["subjects"]
    used = {(right["verb"], right.get("resource"), right.get("namespace")) for right in subject["used"]}
    assert {("list", "pods", "team"), ("get", "pods/log", "team"), ("delete", "deployments", "team")} <= used
    assert not {right for right in used if right[2] == "other"}
