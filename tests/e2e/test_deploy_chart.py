"""The Helm chart: it makes what ``deploy/kustomize`` makes, and refuses values that would not work."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy.object_schema import mistakes
from tests.support.deploy.render import (
    CHART,
    KUSTOMIZE,
    ROOT,
    Object,
    helm,
    helm_template,
    render_chart,
    render_kustomize,
)
from tests.support.wheel import GATEWAY, project_table

OVERLAY = KUSTOMIZE / "overlays/postgresql"
FILES = {
    r"policy.team\.yaml": OVERLAY / "policy/team.yaml",
    r"configFiles.groups\.yaml": OVERLAY / "config/groups.yaml",
    "impersonationRole": OVERLAY / "impersonation.yaml",
}
# Labels and annotations that Helm needs, and kustomize does without.
OF_HELM = (
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
    "checksum/config",
)
# Everything that can be set, at once.
ALL_VALUES = {
    "replicas": 5,
    "image": {"repository": "registry.example.com/ostiary", "tag": "0.2.0", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "serviceAccount": {"name": "door", "annotations": {"a": "b"}},
    "service": {
        "type": "LoadBalancer",
        "annotations": {"a": "b"},
        "externalTrafficPolicy": "Local",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
    },
    "networkPolicy": {
        "metricsNamespaces": ["monitoring", "prometheus"],
        "storePorts": [6379, 26379],
        "extraEgress": [{"ports": [{"port": 636, "protocol": "TCP"}]}],
    },
    "podLabels": {"team": "platform"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "priorityClassName": "system-cluster-critical",
    "env": [{"name": "A", "value": "b"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
}


def test_it_makes_what_kustomize_makes(tmp_path: Path) -> None:
    by_kustomize = {key(each): each for each in map(comparable, render_kustomize(OVERLAY, tmp_path))}
    by_helm = {key(each): each for each in map(comparable, render_chart(files=FILES))}
    # Helm makes no namespace: `helm install --create-namespace` does, without labels.
    del by_kustomize["Namespace", "ostiary"]
    assert by_helm.keys() == by_kustomize.keys()
    for name, document in by_kustomize.items():
        assert by_helm[name] == document


def test_with_the_values_of_the_guide_it_makes_the_overlay_for_redis(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/run-replicas-in-kubernetes.md").read_text()
    values = re.search(r"```yaml\n(.*?)```", page.partition("## Redis\n")[2], re.DOTALL)
    assert values is not None
    (tmp_path / "values.yaml").write_text(values[1])
    overlay = render_kustomize(KUSTOMIZE / "overlays/redis", tmp_path)
    by_kustomize = {key(each): each for each in map(comparable, overlay)}
    by_helm = {
        key(each): each for each in map(comparable, render_chart(files=FILES, value_files=[tmp_path / "values.yaml"]))
    }
    del by_kustomize["Namespace", "ostiary"]
    assert by_helm == by_kustomize


def test_monitoring_is_what_kustomize_makes(tmp_path: Path) -> None:
    by_kustomize = {key(each): each for each in map(comparable, render_kustomize(KUSTOMIZE / "monitoring", tmp_path))}
    by_helm = {key(each): each for each in map(comparable, render_chart(values={"monitoring.enabled": "true"}))}
    assert {name: by_helm[name] for name in by_kustomize} == by_kustomize
    dashboard = by_helm["ConfigMap", "ostiary-gateway-dashboard"]["data"]["ostiary-gateway.json"]
    assert dashboard == json.loads((ROOT / "deploy/grafana/ostiary-gateway.json").read_text())


def test_copies_of_rules_and_dashboard_are_up_to_date() -> None:
    for path, text in runpy.run_path(str(ROOT / "scripts/monitoring"))["copies"]().items():
        assert path.read_text() == text, f"{path} is stale: run make reference"


@pytest.mark.parametrize("values", [{}, ALL_VALUES], ids=["defaults", "all values"])
def test_kubernetes_knows_every_field(values: Mapping[str, Any], tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    rendered = render_chart(files=FILES, value_files=[tmp_path / "values.yaml"])
    assert [mistake for each in rendered for mistake in mistakes(each)] == []


def test_every_value_is_used_somewhere(tmp_path: Path) -> None:
    """A value that a template forgot would be ignored in silence."""
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(ALL_VALUES))
    text = json.dumps(render_chart(files=FILES, value_files=[tmp_path / "values.yaml"]))
    for value in leaves(ALL_VALUES):
        assert value is True or json.dumps(value).strip('"') in text, value


def test_helm_finds_nothing_to_complain_about() -> None:
    done = subprocess.run([helm(), "lint", "--strict", CHART], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = project_table(GATEWAY)["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"replica": "3"}, "replica"),
        ({"replicas": "0"}, "replicas"),
        # Replicas that do not share their sessions would sign people out at random.
        ({"config.store.type": "sqlite"}, "config.store.type"),
        ({"config.store.type": "memory"}, "config.store.type"),
        ({"config.externalURL": "http://gateway.example.com"}, "config.externalURL"),
        ({"config.listen.address": "0.0.0.0:9443"}, "config.listen.address"),
        ({"monitoring.enable": "true"}, "enable"),
    ],
)
def test_values_that_would_not_work_are_refused(values: dict[str, str], told: str) -> None:
    done = subprocess.run(helm_template(values=values), capture_output=True, text=True)
    assert done.returncode != 0
    assert told in done.stderr


class TestChanges:
    def checksum(self, **options: Any) -> str:
        (deployment,) = (each for each in render_chart(**options) if each["kind"] == "Deployment")
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    def test_a_change_of_the_configuration_restarts_the_replicas(self) -> None:
        changed = self.checksum(values={"config.listen.drain": "20s"})
        assert changed != self.checksum()
        assert self.checksum(files={r"configFiles.groups\.yaml": OVERLAY / "config/groups.yaml"}) != self.checksum()

    def test_a_change_of_the_policy_does_not(self) -> None:
        assert self.checksum(files={r"policy.team\.yaml": OVERLAY / "policy/team.yaml"}) == self.checksum()


def test_a_whole_file_can_take_the_place_of_the_values() -> None:
    rendered = render_chart(files={"configText": OVERLAY / "config/gateway.yaml"})
    (config,) = (each for each in rendered if each["metadata"]["name"] == "ostiary-gateway-config")
    assert config["data"]["gateway.yaml"] == (OVERLAY / "config/gateway.yaml").read_text()


def test_under_another_name_all_references_still_lead_somewhere() -> None:
    command = [helm(), "template", "front", str(CHART), "--namespace", "auth"]
    rendered = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, check=True).stdout))
    names = {key(each) for each in rendered}
    (deployment,) = (each for each in rendered if each["kind"] == "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    assert deployment["metadata"]["name"] == "front-ostiary-gateway"
    assert ("ServiceAccount", spec["serviceAccountName"]) in names
    for volume in spec["volumes"]:
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in names
    assert {each["metadata"]["namespace"] for each in rendered} == {"auth"}


def key(document: Object) -> tuple[str, str]:
    return str(document["kind"]), str(document["metadata"]["name"])


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def comparable(document: Any) -> Any:
    """*document* without what belongs to one of the two tools; texts that are YAML or JSON by what they say."""
    if isinstance(document, list):
        return [comparable(each) for each in document]
    if isinstance(document, str):
        return readable(re.sub(r"^(ostiary-gateway-config)-[a-z0-9]{10}$", r"\1", document))
    if not isinstance(document, dict):
        return document
    without = {name: comparable(value) for name, value in document.items() if name not in OF_HELM}
    # The default, which kustomize leaves to the server; and labels of objects that kustomize generates.
    without.pop("imagePullPolicy", None)
    if without.get("kind") == "ConfigMap":
        without["metadata"] = {name: without["metadata"][name] for name in ("name", "namespace")}
    return without


def readable(text: str) -> Any:
    if "\n" not in text:
        return text
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError:
        return text
    return documents[0] if len(documents) == 1 else documents
