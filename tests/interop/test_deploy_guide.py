"""The pages about ``deploy/`` are followed against a real API server, as far as that goes without a node."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.interop.support.cluster import RealCluster
from tests.support.deploy.render import ROOT, helm, objects
from tests.support.tiers import missing

GUIDE = (ROOT / "docs/how-to/run-replicas-in-kubernetes.md").read_text()
OPERATIONS = (ROOT / "docs/how-to/operate.md").read_text()
# What needs an image, a database, or a pod that runs.
NEEDS_MORE = re.compile(
    r"deploy/image/build|podman|psql|rollout status|kubectl -n ostiary (exec|port-forward|wait)|curl"
)


def commands(page: str, heading: str) -> list[str]:
    """The commands of the ``sh`` blocks below *heading*; those that go on over several lines whole."""
    section = re.split(r"^## ", page.partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]
    lines = "\n".join(re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    return [line for line in re.sub(r"\\\n\s*", "", lines).splitlines() if not NEEDS_MORE.search(line)]


class Reader:
    """Somebody with a clone of the repository, who is an administrator of *cluster*."""

    def __init__(self, folder: Path, cluster: RealCluster) -> None:
        self.folder, self.cluster = folder, cluster
        (folder / "deploy").symlink_to(ROOT / "deploy")
        programs = [cluster.kubernetes.program("kubectl").parent, Path(helm()).parent]
        self._environment = {
            **os.environ,
            "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
            "KUBECONFIG": str(cluster.admin.kubeconfig),
        }

    def types(self, lines: list[str]) -> str:
        assert lines
        script = "\n".join(["set -euo pipefail", *lines])
        done = subprocess.run(
            ["bash"], input=script, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def reader(cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Who has done step 2, and step 3 with kustomize."""
    reader = Reader(tmp_path_factory.mktemp("clone"), cluster)
    reader.types(commands(GUIDE, "2. Secrets"))
    reader.types(commands(GUIDE, "3. With kustomize"))
    return reader


def test_the_secrets_of_the_guide_are_those_that_the_configuration_names(reader: Reader) -> None:
    config = (reader.folder / "my-gateway/overlays/postgresql/config/gateway.yaml").read_text()
    for secret, folder in (("ostiary-gateway-secrets", "secrets"), ("ostiary-gateway-tls", "tls")):
        shown = reader.cluster.admin.output("get", "secret", secret, "-n", "ostiary", "-o", "json")
        assert set(re.findall(rf"\.\./{folder}/([\w.-]+)", config)) == set(json.loads(shown)["data"])


def test_the_deployment_is_there(reader: Reader) -> None:
    shown = reader.cluster.admin.output("get", "deployment", "ostiary-gateway", "-n", "ostiary", "-o", "json")
    spec = json.loads(shown)["spec"]
    assert spec["replicas"] == 3
    # Each ConfigMap and Secret that the pods mount.
    for volume in spec["template"]["spec"]["volumes"]:
        kind, name = next(
            (
                (kind, volume[kind].get("name") or volume[kind]["secretName"])
                for kind in ("configMap", "secret")
                if kind in volume
            ),
            ("configMap", "kube-root-ca.crt"),
        )
        assert reader.cluster.admin.output("get", kind, name, "-n", "ostiary", "-o", "name")


def test_the_values_and_the_command_for_helm_fit_the_chart(reader: Reader) -> None:
    section = GUIDE.partition("## 3. With Helm\n")[2].partition("\n## ")[0]
    values = re.search(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert values is not None
    (reader.folder / "my-values.yaml").write_text(values[1])
    (line,) = commands(GUIDE, "3. With Helm")
    rendered = objects(reader.types([line.replace("helm upgrade --install", "helm template")]))
    (config,) = (each for each in rendered if each["metadata"]["name"] == "ostiary-gateway-config")
    assert yaml.safe_load(config["data"]["gateway.yaml"])["externalURL"] == "https://gateway.example.com"
    (deployment,) = (each for each in rendered if each["kind"] == "Deployment")
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == yaml.safe_load(values[1])["image"]["repository"] + ":0.1.0"


def test_the_pod_of_a_restore_is_accepted(reader: Reader) -> None:
    if not any(os.access(Path(folder) / "jq", os.X_OK) for folder in os.environ["PATH"].split(":")):
        missing("jq")
    lines = commands(OPERATIONS, "Backup and restore")
    (start,) = (number for number, line in enumerate(lines) if "jq" in line)
    end = next(number for number, line in enumerate(lines) if line.endswith("create -f -"))
    reader.types(lines[start : end + 1])
    shown = reader.cluster.admin.output("get", "pod", "after-restore", "-n", "ostiary", "-o", "json")
    container = json.loads(shown)["spec"]["containers"][0]
    assert shlex.join(container["args"]) == "store after-restore --config /etc/ostiary/config/gateway.yaml"
    assert "readinessProbe" not in container
    reader.types([line for line in lines if "delete pod" in line])
