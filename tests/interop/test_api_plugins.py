"""An API plugin beside the real API server: the real kubectls find its resources among those of the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import IMPERSONATION, REQUEST_HEADER, ClusterSite, Front, served
from tests.interop.support.process import wait_until
from tests.interop.support.programs import Kubernetes, versions
from tests.support.api_plugin import ALL_OF_BUILDS, GROUP, PluginFiles, api_plugin
from tests.support.gateway import ServedGateway, role

BUILDS = f"/apis/{GROUP}/v1/namespaces/team/builds"
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"images.{GROUP}"},
    "spec": {
        "group": GROUP,
        "names": {"plural": "images", "singular": "image", "kind": "Image"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": ANYTHING}}],
    },
}


@pytest.fixture(scope="module")
def gateways(
    cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ClusterSite, ServedGateway]]:
    site = ClusterSite(tmp_path_factory.mktemp("plugins"), cluster)
    # The cluster knows nothing of builds: what the gateway allows is enough.
    site.policy(role("team", ALL_OF_BUILDS, Group="dev"), folder="builds")
    policy = {"chain": [{"name": "policy", "type": "rbac", "paths": ["policy", "builds"]}]}
    files = PluginFiles(site)
    with api_plugin(files) as plugin:
        section = files.declared(plugin.url)
        section["declared"] += files.declared(plugin.url, upstream="by-header")["declared"]
        sections = {"apiPlugins": section, "authorization": policy}
        site.write_config(**site.sections(**sections))
        site.give_role()
        with served(site, **sections) as gateway:
            yield site, gateway


@pytest.fixture(params=[IMPERSONATION, REQUEST_HEADER], ids=["impersonation", "requestHeader"])
def front(gateways: tuple[ClusterSite, ServedGateway], request: pytest.FixtureRequest) -> Front:
    front = Front(*gateways, request.param)
    wait_until(lambda: _status(front) == 200, what="the plugin")
    return front


def _status(front: Front) -> int:
    with front.http("alice") as http:
        return http.get(BUILDS).status_code


@pytest.mark.parametrize("kubernetes", versions(), ids=lambda version: f"kubectl-{version}")
def test_kubectl_uses_it_like_the_cluster(front: Front, kubernetes: Kubernetes) -> None:
    kubectl = front.kubectl("alice", program=kubernetes.program("kubectl"))
    name = f"one-{'i' if front.impersonates else 'h'}-{str(kubernetes).replace('.', '-')}"
    spec = {"image": "shop:1", "source": "git"}
    manifest = {"apiVersion": f"{GROUP}/v1", "kind": "Build", "metadata": {"name": name}, "spec": spec}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    both = f"{json.dumps(manifest)}\n---\n{json.dumps(settings)}\n"
    created = kubectl.output("apply", "-f", "-", stdin=both)
    assert created == f"build.{GROUP}/{name} created\nconfigmap/{name} created\n"
    listed = kubectl.output("get", "builds,configmaps", "-o", "name").split()
    assert {f"build.{GROUP}/{name}", f"configmap/{name}"} <= set(listed)
    assert name in kubectl.output("get", "bld")
    assert name in kubectl.output("get", "ci")
    assert "Requested By:  alice" in kubectl.output("describe", "build", name)
    assert "The image that is made." in kubectl.output("explain", "build.spec")
    assert "PodSpec" in kubectl.output("explain", "pod.spec")
    rows = {row.split()[0]: row.split() for row in kubectl.output("api-resources").splitlines()}
    assert rows["builds"] == ["builds", "bld", f"{GROUP}/v1", "true", "Build"]
    assert {"pods", "deployments", "customresourcedefinitions"} <= rows.keys()
    assert f"{GROUP}/v1" in kubectl.output("api-versions").split()
    kubectl.output("delete", "-f", "-", stdin=both)


def test_who_may_not_is_told_by_the_gateway(front: Front) -> None:
    refused = front.kubectl("bob")("get", "builds")
    assert f'User "bob" cannot list resource "builds" in API group "{GROUP}"' in refused.stderr


def test_openapi_v2_has_both(front: Front) -> None:
    with front.http("alice") as http:
        document = http.get("/openapi/v2", headers={"Accept": "application/json"}).json()
    assert "io.k8s.api.core.v1.Pod" in document["definitions"]
    assert "com.example.builds.v1.Build" in document["definitions"]
    assert "/api/v1/pods" in document["paths"]


def test_a_definition_in_the_cluster_ends_it_and_its_removal_brings_it_back(front: Front, cluster: RealCluster) -> None:
    cluster.apply(CRD)
    try:

        def groups() -> list[str]:
            with front.http("alice") as http:
                return [group["name"] for group in http.get("/apis").json()["groups"]]

        wait_until(lambda: _status(front) == 503, what="the conflict")
        assert groups().count(GROUP) == 1
    finally:
        cluster.admin.output("delete", "crd", f"images.{GROUP}")
    wait_until(lambda: _status(front) == 200, what="the plugin again")
