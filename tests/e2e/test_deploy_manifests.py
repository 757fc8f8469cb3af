"""The manifests of ``deploy/kustomize``: they render, Kubernetes knows every field, and a gateway runs from them."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ostiary_gateway.server.worker import GOODBYE_SECONDS, NOTICE_SECONDS
from tests.interop.support.process import wait_until
from tests.support.cluster import Cluster
from tests.support.deploy.mounted_pod import MountedPod, secrets_of_an_operator
from tests.support.deploy.object_schema import mistakes
from tests.support.deploy.render import KUSTOMIZE, Object, objects, render_kustomize
from tests.support.wheel import GATEWAY, project_table

OVERLAYS = sorted((KUSTOMIZE / "overlays").iterdir())
# Remarked on certificates that were made for a test.
OF_A_PRIVATE_AUTHORITY = "name it with externalCA"
# What a stop takes besides listen.shutdownDelay and listen.drain; the supervisor of several workers waits 5 s for them.
CLOSING_SECONDS = NOTICE_SECONDS + GOODBYE_SECONDS + 5.0


@pytest.fixture(params=OVERLAYS, ids=lambda path: path.name)
def overlay(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def rendered(overlay: Path, tmp_path: Path) -> list[Object]:
    return render_kustomize(overlay, tmp_path / "rendering")


@pytest.fixture
def deployment(rendered: list[Object]) -> Object:
    (deployment,) = (each for each in rendered if each["kind"] == "Deployment")
    return deployment


@pytest.fixture
def config(overlay: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((overlay / "config/gateway.yaml").read_text())
    return config


class TestObjects:
    def test_kubernetes_knows_every_field(self, rendered: list[Object]) -> None:
        assert [mistake for each in rendered for mistake in mistakes(each)] == []

    def test_a_misspelt_field_and_a_value_of_another_type_are_noticed(self, deployment: Object) -> None:
        wrong = copy.deepcopy(deployment)
        container = wrong["spec"]["template"]["spec"]["containers"][0]
        container["readynessProbe"] = container.pop("readinessProbe")
        wrong["spec"]["replicas"] = "three"
        assert len(mistakes(wrong)) == 2

    def test_all_is_in_one_namespace_but_the_roles_for_the_users_namespaces(self, rendered: list[Object]) -> None:
        elsewhere = [each["kind"] for each in rendered if each["metadata"].get("namespace", "ostiary") != "ostiary"]
        assert elsewhere == ["Role", "RoleBinding"]

    def test_nothing_of_a_secret_is_in_the_manifests(self, rendered: list[Object]) -> None:
        assert "Secret" not in {each["kind"] for each in rendered}

    def test_the_image_is_that_of_this_version(self, deployment: Object) -> None:
        version = project_table(GATEWAY)["version"]
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"ostiary:{version}"


class TestDeployment:
    def test_a_stop_is_over_before_kubernetes_kills(self, deployment: Object, config: dict[str, Any]) -> None:
        needs = seconds(config["listen"]["shutdownDelay"]) + seconds(config["listen"]["drain"]) + CLOSING_SECONDS
        assert needs < deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

    def test_no_new_connections_come_when_the_port_closes(self, deployment: Object, config: dict[str, Any]) -> None:
        """The endpoint of a pod that ends is removed at once, and must have reached the nodes by then."""
        assert seconds(config["listen"]["shutdownDelay"]) >= 5

    def test_the_ports_are_those_of_the_configuration(self, deployment: Object, config: dict[str, Any]) -> None:
        ports = {
            port["name"]: port["containerPort"]
            for port in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]
        }
        addresses = {"https": config["listen"]["address"], "health": config["health"]["address"]}
        assert ports == {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}

    def test_probes_ask_the_health_port(self, deployment: Object) -> None:
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
        assert {probe["port"] for probe in probes.values()} == {"health"}
        assert {name: probe["path"] for name, probe in probes.items()} == {
            "startup": "/livez",
            "readiness": "/readyz",
            "liveness": "/livez",
        }

    def test_every_selector_finds_the_pods(self, rendered: list[Object], deployment: Object) -> None:
        labels = deployment["spec"]["template"]["metadata"]["labels"].items()
        for each in rendered:
            spec = each.get("spec", {})
            for selector in (spec.get("selector"), spec.get("podSelector")):
                if selector is not None:
                    assert selector.get("matchLabels", selector).items() <= labels, each["kind"]


def seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


@pytest.fixture
def pod(rendered: list[Object], ca: trustme.CA, cluster: Cluster, tmp_path: Path) -> MountedPod:
    """A pod with the Secrets that an operator makes."""
    token = cluster.add_token("gateway", may_impersonate=True)
    return MountedPod(tmp_path, ca, rendered, secrets=secrets_of_an_operator(ca), token=token)


class TestRunning:
    def test_the_configuration_is_right_as_it_stands(self, pod: MountedPod) -> None:
        command = [sys.executable, "-m", "ostiary_gateway", "serve", "--check", "--config", str(pod.config)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        remarks = [line for line in done.stderr.splitlines() if OF_A_PRIVATE_AUTHORITY not in line]
        assert not remarks

    def test_the_role_in_the_cluster_is_the_one_that_the_command_prints(
        self, overlay: Path, pod: MountedPod, cluster: Cluster
    ) -> None:
        pod.run_here(cluster, {"type": "sqlite", "path": str(pod.site.folder / "tokens.db")})
        command = ["impersonation-role", "--service-account", "ostiary/ostiary-gateway", "--config", str(pod.config)]
        shown = subprocess.run([sys.executable, "-m", "ostiary_gateway", *command], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        assert objects((overlay / "impersonation.yaml").read_text()) == objects(shown.stdout)

    def test_a_policy_that_is_replaced_in_its_mount_is_in_force_without_a_restart(
        self, pod: MountedPod, cluster: Cluster, overlay: Path
    ) -> None:
        pod.run_here(cluster, {"type": "sqlite", "path": str(pod.site.folder / "tokens.db")})
        with pod.serving() as gateway:
            token = gateway.login("alice").token
            pods = "/api/v1/namespaces/team/pods"
            assert gateway.get(pods, token).status_code == 200
            assert gateway.probe("/readyz").status_code == 200
            policy = (overlay / "policy/team.yaml").read_text()
            pod.write("/etc/ostiary/policy", {"team.yaml": policy.replace("[pods, pods/log, pods/exec]", "[services]")})
            wait_until(lambda: gateway.get(pods, token).status_code == 403, what="the new policy")
            assert gateway.get("/api/v1/namespaces/team/services", token).status_code != 403

    def test_a_token_that_the_kubelet_has_renewed_is_used(self, pod: MountedPod, cluster: Cluster) -> None:
        """So that the API server never rejects the gateway, which users would take for their own sign-in's fault."""
        pod.run_here(cluster, {"type": "sqlite", "path": str(pod.site.folder / "tokens.db")})
        with pod.serving() as gateway:
            token = gateway.login("alice").token
            pods = "/api/v1/namespaces/team/pods"
            assert gateway.get(pods, token).status_code == 200
            ca = (pod.root / "etc/ostiary/upstream/ca.crt").read_text()
            cluster.trust.tokens.clear()
            pod.write(
                "/etc/ostiary/upstream", {"token": cluster.add_token("gateway", may_impersonate=True), "ca.crt": ca}
            )
            assert gateway.get(pods, token).status_code == 200
