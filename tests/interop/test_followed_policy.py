"""The policy of a real cluster, followed: the gateway decides as its SubjectAccessReview does, a moment later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import ClusterSite
from tests.interop.support.people import binding, cluster_role, user
from tests.interop.support.process import wait_until
from tests.interop.test_policies import (
    CALLER,
    LABEL,
    Policy,
    ask,
    disagreements,
    policy_cluster,
    settle_aggregation,
)
from tests.support.gateway import ServedGateway
from tests.support.ports import free_port

__all__ = ["policy_cluster"]

QUESTIONS = 200
# Generous: the machine may be busy. The bench says what it takes on a calm one.
SECONDS = 60.0


@contextmanager
def following(folder: Path, cluster: RealCluster, server: str) -> Iterator[ServedGateway]:
    """A gateway that follows the API server at *server*, with what ``impersonation-role`` printed and no more."""
    site = ClusterSite(folder, cluster)
    (folder / "caller-token").write_text(CALLER)
    site._write_leaf("gateway-client", cluster.certificate("ostiary-gateway"))
    files = {"ca": "cluster-ca.pem", "certificate": "gateway-client.pem", "key": "gateway-client.key"}
    upstream = {
        "name": "cluster",
        "server": server,
        "attributes": "kubernetes",
        "identity": "impersonation",
        "tls": files,
    }
    sections: dict[str, Any] = {
        "upstreams": [upstream],
        "authorization": {"chain": [{"name": "rbac", "type": "rbac", "from": {"upstream": "cluster"}}]},
        "webhooks": {"subjectAccessReview": True, "callers": {"tokenFile": "caller-token"}},
    }
    site.write_config(**sections)
    # First what lets it read the policy, then what the policy says that it needs.
    for _ in range(2):
        options = ("--subject-user", "ostiary-gateway", "--name", "following-gateway")
        cluster.admin.output("apply", "-f", "-", stdin=site.impersonation_role("ostiary/gateway", *options))
    with site.serving(**sections) as gateway:
        wait_until(lambda: _is_ready(gateway), what="the policy of the cluster")
        yield gateway


def _is_ready(gateway: ServedGateway) -> bool:
    return httpx.get(f"{gateway.health}/readyz", trust_env=False, timeout=30).status_code == 200


def assert_agreement(cluster: RealCluster, gateway: ServedGateway, policy: Policy) -> None:
    questions = [policy.question() for _ in range(QUESTIONS)]
    deadline = time.monotonic() + SECONDS
    while different := disagreements(cluster, gateway, questions):
        assert time.monotonic() < deadline, "\n".join(different)
        time.sleep(0.05)


@pytest.mark.parametrize("seed", [21, 22])
def test_random_policies_that_change_mean_the_same(seed: int, policy_cluster: RealCluster, tmp_path: Path) -> None:
    policy = Policy(seed)
    for each in policy.cluster_roles:
        if "aggregationRule" in each:
            # Roles that are made of each other may take each other's old rules in turn, for ever.
            each["metadata"]["labels"].pop("part", None)
    with following(tmp_path, policy_cluster, policy_cluster.url) as gateway:
        policy_cluster.apply(*policy.manifests)
        settle_aggregation(policy_cluster)
        assert_agreement(policy_cluster, gateway, policy)
        # Other rules under the same names, other subjects, and some of it gone.
        after = Policy(seed + 100)
        after.seed = policy.seed
        for old, new in zip(policy.cluster_roles + policy.roles, after.cluster_roles + after.roles, strict=True):
            old["rules"] = new["rules"]
        for old, new in zip(policy.bindings, after.bindings, strict=True):
            old["subjects"] = new["subjects"]
        # The rules of a role that is made of others are its controller's.
        policy_cluster.apply(*(each for each in policy.manifests if "aggregationRule" not in each))
        for each in (*policy.bindings[::4], *policy.cluster_roles[::5], *policy.roles[:1]):
            where = each["metadata"].get("namespace")
            scope = ("-n", where) if where else ()
            policy_cluster.admin.output("delete", each["kind"], each["metadata"]["name"], *scope)
        settle_aggregation(policy_cluster)
        assert_agreement(policy_cluster, gateway, policy)


def question(path: str) -> dict[str, Any]:
    spec = {"user": "alice", "nonResourceAttributes": {"verb": "get", "path": path}}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def grant(cluster: RealCluster, name: str) -> None:
    role = cluster_role(name, {"verbs": ["get"], "nonResourceURLs": [f"/{name}"]})
    bound = binding(name, name, user("alice"))
    for each in (role, bound):
        each["metadata"]["labels"] = LABEL
    cluster.apply(role, bound)


def test_a_restart_of_the_api_server_is_survived(policy_cluster: RealCluster, tmp_path: Path) -> None:
    """What changes while it is away is known when it is back; until then the last policy holds."""
    cluster, port = policy_cluster, free_port()
    grant(cluster, "before")
    with following_through(cluster, port, tmp_path) as (gateway, server), gateway.http(CALLER) as http:

        def allows(name: str) -> bool:
            return ask(http, "/webhooks/subject-access-review", question(f"/{name}"))

        assert allows("before")
        server.close()
        assert allows("before")
        cluster.admin.output("delete", "clusterrolebinding", "before")
        grant(cluster, "after")
        with cluster.api_server(port=port):
            wait_until(lambda: allows("after"), what="the policy after the restart")
            assert not allows("before")


class _ApiServer:
    def __init__(self, cluster: RealCluster, port: int) -> None:
        self._context = cluster.api_server(port=port)
        self.url = self._context.__enter__()
        self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._context.__exit__(None, None, None)


@contextmanager
def following_through(cluster: RealCluster, port: int, folder: Path) -> Iterator[tuple[ServedGateway, _ApiServer]]:
    """A gateway that follows an API server of its own, which the test can end."""
    server = _ApiServer(cluster, port)
    try:
        with following(folder, cluster, server.url) as gateway:
            yield gateway, server
    finally:
        server.close()
