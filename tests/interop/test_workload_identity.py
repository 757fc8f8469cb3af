"""Pods sign in with the tokens that a real API server gives out for them, by its keys and by its TokenReview. S72."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import POLICY, ClusterSite
from tests.interop.support.kubectl import RealKubectl
from tests.interop.support.people import ROBOT, binding, service_account
from tests.support.gateway import ServedGateway

GATEWAY = "https://gateway.example.com"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "worker", "namespace": "team"},
    "spec": {"serviceAccountName": "robot", "containers": [{"name": "main", "image": "none"}]},
}


@pytest.fixture(scope="module", params=[False, True], ids=["keys", "TokenReview"])
def gateway(
    cluster: RealCluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    cluster.apply(POD, binding("reviews", "system:auth-delegator", service_account("gateway", "ostiary")))
    site = ClusterSite(tmp_path_factory.mktemp("pods"), cluster)
    identity = {
        "name": "pods",
        "type": "workload",
        "platform": "kubernetes",
        "cluster": "cluster",
        "issuer": cluster.url.replace("localhost", "127.0.0.1"),
        "server": cluster.url,
        "ca": "cluster-ca.pem",
        "tokenFile": "cluster-token",
        "tokenReview": request.param,
        "rules": [{"match": {"namespace": "team"}}],
    }
    sections: dict[str, Any] = {"upstreams": [site.by_impersonation()], "authorization": POLICY, "externalURL": GATEWAY}
    site.write_config(identity=[identity], **sections)
    site.give_role("ostiary/gateway", "--as-service-account", "team/robot", name=f"pods-{request.param}".lower())
    with site.serving(identity=[identity], **sections) as gateway:
        yield gateway


def request_token(cluster: RealCluster, account: str, *more: str, audience: str = GATEWAY) -> str:
    words = ("create", "token", account, "-n", "team", "--duration=10m", f"--audience={audience}", *more)
    return cluster.admin.output(*words).strip()


def exchange(gateway: ServedGateway, token: str) -> dict[str, str]:
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "subject_token": token,
    }
    answer: dict[str, str] = gateway.http().post("/auth/token", data=form).json()
    return answer


def test_a_pod_works_as_its_service_account(cluster: RealCluster, gateway: ServedGateway) -> None:
    for more in ((), ("--bound-object-kind=Pod", "--bound-object-name=worker")):
        granted = exchange(gateway, request_token(cluster, "robot", *more))
        assert granted.get("user") == ROBOT, f"{granted} {gateway.stderr}"
        plain = gateway.kubectl(granted["access_token"], namespace="team")
        kubectl = RealKubectl(cluster.kubernetes.program("kubectl"), plain.kubeconfig)
        assert kubectl.output("get", "configmap", "kube-root-ca.crt", "-o", "name")
        assert "forbidden" in kubectl("get", "secrets").stderr
        assert "forbidden" in kubectl("get", "configmaps", "-n", "other").stderr


def test_other_tokens_of_the_cluster_are_refused(cluster: RealCluster, gateway: ServedGateway) -> None:
    for_itself = request_token(cluster, "robot", audience=cluster.url)
    elsewhere = cluster.admin.output("create", "token", "gateway", "-n", "ostiary", f"--audience={GATEWAY}").strip()
    for token in (for_itself, elsewhere, f"{for_itself[:-8]}AAAAAAAA"):
        assert exchange(gateway, token)["error"] == "invalid_request"
    assert not any(part in gateway.stderr for part in for_itself.split("."))
