"""Object quotas before the real API server: its defaults are counted, and what is counted is what a list says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from tests.interop.support import people
from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import IMPERSONATION, REQUEST_HEADER, ClusterSite, Front, served
from tests.interop.support.people import binding, cluster_role, rule, service_account
from tests.interop.support.process import wait_until
from tests.support.gateway import ServedGateway

_numbers = count()
PROTOBUF = "application/vnd.kubernetes.protobuf"
LISTER = "quota-lister"
CPU = {"name": "requests.cpu", "path": "spec.containers[*].resources.requests.cpu", "limit": "2"}
STORAGE = {"name": "requests.storage", "path": "spec.resources.requests.storage", "limit": "10Gi"}
REPLICAS = {"name": "replicas", "path": "spec.replicas", "limit": "5"}
LIMITS: list[dict[str, Any]] = [
    {"name": "pods", "resources": ["pods"], "count": 6, "sums": [CPU]},
    {"name": "claims", "resources": ["persistentvolumeclaims"], "sums": [STORAGE]},
    {"name": "replicas", "resources": ["deployments.apps"], "sums": [REPLICAS]},
    {"name": "mine", "resources": ["configmaps"], "per": ["user"], "count": 2},
]


@pytest.fixture(scope="module")
def gateways(
    cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ClusterSite, ServedGateway]]:
    counted = [
        rule("pods persistentvolumeclaims configmaps", "get list"),
        rule("deployments", "get list", group="apps"),
    ]
    cluster.apply(
        people.account("quota-gateway", "ostiary"),
        cluster_role("object-quota", *counted),
        binding("object-quota", "object-quota", people.user(LISTER)),
        binding("object-quota-gateway", "object-quota", service_account("quota-gateway", "ostiary")),
    )
    site = ClusterSite(tmp_path_factory.mktemp("quota"), cluster)
    by_impersonation = {"name": "objects", "type": "object_quota", "limits": LIMITS}
    sections = {
        "listen": {"workers": 2},
        "admission": [{**by_impersonation, "listAs": LISTER}],
    }
    site.write_config(**site.sections(**sections))
    site.give_role("ostiary/quota-gateway", name="quota-gateway")
    cluster.apply(
        cluster_role("quota-lister", rule("users", "impersonate", names=(LISTER,))),
        binding("quota-lister", "quota-lister", service_account("quota-gateway", "ostiary")),
    )
    with served(site, **sections) as gateway:
        wait_until(lambda: gateway.probe("/readyz").status_code == 200, what="readiness")
        yield site, gateway


@pytest.fixture(params=[IMPERSONATION, REQUEST_HEADER], ids=["impersonation", "requestHeader"])
def front(gateways: tuple[ClusterSite, ServedGateway], request: pytest.FixtureRequest) -> Front:
    return Front(*gateways, request.param)


@pytest.fixture
def namespace(cluster: RealCluster) -> str:
    """One of its own for each test: what is deleted past the gateway is noticed a second later."""
    name = f"quota-{next(_numbers)}"
    cluster.add_namespace(name)
    defaults = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "500m"}}]}
    metadata = {"name": "defaults", "namespace": name}
    cluster.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": defaults})
    return name


def pod(name: str, cpu: str = "") -> dict[str, Any]:
    resources = {"resources": {"requests": {"cpu": cpu}}} if cpu else {}
    containers = [{"name": "main", "image": "nginx", **resources}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}


def listed(cluster: RealCluster, kind: str, namespace: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(cluster.admin.output("get", kind, "-n", namespace, "-o", "json"))["items"]
    return items


def test_what_a_limit_range_adds_is_counted(front: Front, cluster: RealCluster, namespace: str) -> None:
    """S71."""
    kubectl = front.kubectl("carol", namespace=namespace)
    for name in ("a", "b", "c", "d"):
        kubectl.output("run", name, "--image=nginx")
    refused = kubectl("run", "e", "--image=nginx")
    assert (
        "exceeded quota: pods, requested: requests.cpu=500m, used: requests.cpu=2, limited: requests.cpu=2"
        in refused.stderr
    )
    assert len(listed(cluster, "pods", namespace)) == 4
    kubectl.output("delete", "pod", "a", "--force", "--grace-period=0")
    kubectl.output("apply", "--server-side", "-f", "-", stdin=json.dumps(pod("e", "300m")))
    kubectl.output("apply", "-f", "-", stdin=json.dumps(pod("f", "100m")))
    assert "requests.cpu=200m" in kubectl("apply", "-f", "-", stdin=json.dumps(pod("g", "200m"))).stderr


def test_of_many_at_once_exactly_as_many_pass_as_fit(front: Front, cluster: RealCluster, namespace: str) -> None:
    """S71."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    front.token("carol")

    def create(number: int) -> int:
        with front.http("carol") as client:
            return client.post(path, json=pod(f"pod-{number}", "10m")).status_code

    with ThreadPoolExecutor(16) as threads:
        assert Counter(threads.map(create, range(16))) == {201: 6, 403: 10}
    assert len(listed(cluster, "pods", namespace)) == 6


def test_protobuf_is_counted_too(front: Front, cluster: RealCluster, namespace: str) -> None:
    """As controllers written in Go send it, and want it back."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    with front.http("carol", headers=[("Accept", PROTOBUF)]) as client:
        encoded = client.post(f"{path}?dryRun=All", json=pod("proto", "1500m"))
        assert encoded.status_code == 201
        headers = {"Content-Type": PROTOBUF}
        assert client.post(path, content=encoded.content, headers=headers).status_code == 201
        assert client.post(path, json=pod("next", "600m")).status_code == 403
        assert client.post(path, json=pod("next", "500m")).status_code == 201
    assert len(listed(cluster, "pods", namespace)) == 2


def test_storage_and_replicas_are_summed(front: Front, cluster: RealCluster, namespace: str) -> None:
    """S71."""
    kubectl = front.kubectl("carol", namespace=namespace)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"generateName": "data-"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Gi"}}},
    }
    outcomes = [kubectl("create", "-f", "-", stdin=json.dumps(claim)) for _ in range(3)]
    assert [outcome.returncode for outcome in outcomes] == [0, 0, 1]
    assert "used: requests.storage=8Gi, limited: requests.storage=10Gi" in outcomes[-1].stderr
    kubectl.output("create", "deployment", "web", "--image=nginx", "--replicas=3")
    assert "requested: replicas=3, used: replicas=3" in kubectl("scale", "deployment/web", "--replicas=6").stderr
    kubectl.output("scale", "deployment/web", "--replicas=5")
    assert kubectl("create", "deployment", "more", "--image=nginx").returncode == 1
    kubectl.output("scale", "deployment/web", "--replicas=1")
    kubectl.output("create", "deployment", "more", "--image=nginx", "--replicas=4")
    assert sum(each["spec"]["replicas"] for each in listed(cluster, "deployments.apps", namespace)) == 5


def test_a_person_has_a_quota_of_their_own(front: Front, cluster: RealCluster, namespace: str) -> None:
    """S71: the namespace has a ConfigMap that nobody made through the gateway."""
    kubectl = front.kubectl("carol", namespace=namespace)
    for name in ("one", "two"):
        kubectl.output("create", "configmap", name)
    assert "exceeded quota: mine" in kubectl("create", "configmap", "three").stderr
    kubectl.output("delete", "configmap", "one")
    kubectl.output("create", "configmap", "three")


def test_what_the_api_server_refuses_is_refused_in_its_own_words(front: Front, namespace: str) -> None:
    kubectl = front.kubectl("carol", namespace=namespace)
    kubectl.output("run", "taken", "--image=nginx")
    assert "AlreadyExists" in kubectl("run", "taken", "--image=nginx").stderr
    invalid = pod("INVALID")
    assert "is invalid: metadata.name" in kubectl("create", "-f", "-", stdin=json.dumps(invalid)).stderr


def test_usage_is_what_a_list_says(front: Front, cluster: RealCluster, namespace: str) -> None:
    kubectl = front.kubectl("carol", namespace=namespace)
    kubectl.output("run", "a", "--image=nginx")
    cluster.admin.output("run", "past-the-gateway", "--image=nginx", "-n", namespace)
    with front.http("carol") as client:
        rows = client.get("/apis/ostiary.dev/v1/quotas").json()["items"]
    upstream = "cluster" if front.impersonates else "by-header"
    mine = [row for row in rows if (row["upstream"], row["subject"]) == (upstream, f"namespace {namespace}")]
    assert {(row["item"], row["used"]) for row in mine} == {("count/pods", "2"), ("requests.cpu", "1")}
    for name in ("b", "c"):
        kubectl.output("run", name, "--image=nginx")
    assert len(listed(cluster, "pods", namespace)) == 4
