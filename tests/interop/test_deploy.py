"""The objects of ``deploy/``, given to a real API server: strict, in a namespace with Pod Security "restricted"."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.interop.support.cluster import MASTERS, RealCluster
from tests.interop.support.process import wait_until
from tests.interop.support.programs import Kubernetes, versions
from tests.support.deploy import object_schema
from tests.support.deploy.render import CHART, KUSTOMIZE, Object, helm, render_chart, render_kustomize

MODES = ("enforce", "warn", "audit")
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
OVERLAY = KUSTOMIZE / "overlays/postgresql"
CHART_FILES = {
    r"policy.team\.yaml": OVERLAY / "policy/team.yaml",
    r"configFiles.groups\.yaml": OVERLAY / "config/groups.yaml",
    "impersonationRole": OVERLAY / "impersonation.yaml",
}
RESTRICTED: Object = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "chart", "labels": {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in MODES}},
}
_PLURALS = {"NetworkPolicy": "networkpolicies"}
# Applied for real, in this order: Pod Security goes by the labels of the namespace, and a pod needs its account.
_FIRST = {"Namespace": 0, "ServiceAccount": 1}


@pytest.fixture(scope="module")
def http(cluster: RealCluster) -> Any:
    with cluster.http("admin", MASTERS) as http:
        yield http


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("kubernetes", versions(), ids=str)
def test_every_kubectl_renders_the_same(kubernetes: Kubernetes, overlay: str, tmp_path: Path) -> None:
    folder = KUSTOMIZE / "overlays" / overlay
    rendered = render_kustomize(folder, tmp_path, kubectl=kubernetes.program("kubectl"))
    assert rendered == render_kustomize(folder, tmp_path, kubectl=versions()[0].program("kubectl"))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_server_accepts_every_object_of_an_overlay(
    overlay: str, cluster: RealCluster, http: httpx.Client, tmp_path: Path
) -> None:
    rendered = render_kustomize(
        KUSTOMIZE / "overlays" / overlay, tmp_path, kubectl=cluster.kubernetes.program("kubectl")
    )
    assert_accepted(http, rendered)


def test_the_server_accepts_the_objects_of_the_prometheus_operator(
    cluster: RealCluster, http: httpx.Client, tmp_path: Path
) -> None:
    for definition in object_schema.custom_definitions():
        answer = apply(http, definition, dry_run=False)
        assert answer.status_code < 300, answer.text
    rendered = render_kustomize(KUSTOMIZE / "monitoring", tmp_path, kubectl=cluster.kubernetes.program("kubectl"))

    def are_served() -> bool:
        return all(apply(http, each, dry_run=True).status_code != 404 for each in rendered)

    wait_until(are_served, what="the kinds of the operator")
    assert_accepted(http, rendered)


def test_the_server_accepts_every_object_of_the_chart(http: httpx.Client) -> None:
    namespace = {**RESTRICTED, "metadata": {**RESTRICTED["metadata"], "name": "ostiary"}}
    assert_accepted(http, [namespace, *render_chart(files=CHART_FILES)])


def test_helm_installs_the_chart_and_upgrades_it(cluster: RealCluster, http: httpx.Client) -> None:
    """For real: there is no node, so that no pod starts. The notes tell what is still missing, until nothing is."""
    assert apply(http, RESTRICTED, dry_run=False).status_code < 300
    notes = run_helm(cluster, "install", "--set", "replicas=2")
    assert "ostiary-gateway impersonation-role" in notes
    assert "nobody may do anything" in notes
    notes = run_helm(
        cluster,
        "upgrade",
        "--take-ownership",
        *(text for name, path in CHART_FILES.items() for text in ("--set-file", f"{name}={path}")),
    )
    assert "impersonation-role" not in notes
    assert "nobody may do anything" not in notes
    shown = cluster.admin.output(
        "get", "deployment", "ostiary-gateway", "-n", "chart", "-o", "jsonpath={.spec.replicas}"
    )
    assert shown == "3"


def run_helm(cluster: RealCluster, command: str, *options: str) -> str:
    """What ``helm install`` or ``helm upgrade`` prints below "NOTES:". A warning of the server is a failure."""
    done = subprocess.run(
        [helm(), command, "ostiary-gateway", CHART, "--namespace", "chart", *options],
        env={**os.environ, "KUBECONFIG": str(cluster.admin.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_a_pod_passes_pod_security_restricted_and_a_weaker_one_does_not(
    cluster: RealCluster, http: httpx.Client, tmp_path: Path
) -> None:
    folder = KUSTOMIZE / "overlays" / OVERLAYS[0]
    rendered = render_kustomize(folder, tmp_path, kubectl=cluster.kubernetes.program("kubectl"))
    assert_accepted(http, rendered)
    pod = pod_of(rendered)
    answer = apply(http, pod, dry_run=True)
    assert answer.status_code == 201, answer.text
    assert "warning" not in answer.headers
    del pod["spec"]["containers"][0]["securityContext"]["capabilities"]
    answer = apply(http, pod, dry_run=True)
    assert answer.status_code == 403
    assert "restricted" in answer.json()["message"]


def test_the_stored_schemas_are_those_of_the_newest_server(cluster: RealCluster, http: httpx.Client) -> None:
    if cluster.kubernetes != versions()[0]:
        pytest.skip("only the schemas of the newest version are stored")
    documents = {version: http.get(object_schema.openapi_path(version)).json() for version in object_schema.KINDS}
    extracted = object_schema.extract(documents)
    if os.environ.get("OSTIARY_WRITE_SCHEMAS"):
        object_schema.write_stored(extracted)
    assert extracted == object_schema.read_stored(), "set OSTIARY_WRITE_SCHEMAS=1 once to store them"


def assert_accepted(http: httpx.Client, rendered: list[Object]) -> None:
    """Server-side apply as a dry run, and no field that the server does not know, and not one warning."""
    refusals = []
    for each in sorted(rendered, key=lambda document: _FIRST.get(document["kind"], len(_FIRST))):
        answer = apply(http, each, dry_run=each["kind"] not in _FIRST)
        if answer.status_code >= 300 or "warning" in answer.headers:
            refusals.append(f"{each['kind']} {each['metadata']['name']}: {answer.text} {answer.headers.get('warning')}")
    assert not refusals, "\n".join(refusals)


def apply(http: httpx.Client, document: Object, *, dry_run: bool) -> httpx.Response:
    options = {"fieldManager": "deploy-test", "force": "true", "fieldValidation": "Strict"}
    if dry_run:
        options["dryRun"] = "All"
    headers = {"Content-Type": "application/apply-patch+yaml"}
    return http.patch(_path(document), params=options, json=document, headers=headers)


def pod_of(rendered: list[Object]) -> Object:
    """A pod as the Deployment makes it."""
    template = next(each for each in rendered if each["kind"] == "Deployment")["spec"]["template"]
    metadata = {**template["metadata"], "name": "ostiary-gateway-1", "namespace": "ostiary"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _path(document: Object) -> str:
    version, metadata = document["apiVersion"], document["metadata"]
    kind = str(document["kind"])
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    namespace = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"/{'apis' if '/' in version else 'api'}/{version}{namespace}/{plural}/{metadata['name']}"
