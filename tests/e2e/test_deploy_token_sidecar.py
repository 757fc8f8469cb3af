"""The example of a pod with a token sidecar: Kubernetes knows every field, and its command lines are valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ostiary.cli.arguments import Parser
from ostiary.cli.login.get_token import configure
from tests.support.deploy.object_schema import mistakes

ROOT = Path(__file__).parents[2]


def deployment() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "deploy/kubernetes/token-sidecar.yaml").read_text())
    return loaded


def test_kubernetes_knows_every_field() -> None:
    assert list(mistakes(deployment())) == []


def test_the_probes_read_the_ready_file_and_the_application_sees_only_the_files() -> None:
    pod = deployment()["spec"]["template"]["spec"]
    (sidecar,) = pod["initContainers"]
    parser = Parser()
    configure(parser)
    arguments = parser.parse_args(sidecar["args"][1:])
    assert sidecar["args"][0] == "get-token"
    assert arguments.watch
    for probe in (sidecar["startupProbe"], sidecar["livenessProbe"]):
        assert probe["exec"]["command"][:2] == ["ostiary", "get-token"]
        probed = parser.parse_args(probe["exec"]["command"][2:])
        assert (probed.probe, probed.ready_file) == (True, arguments.ready_file)
    mounts = {mount["mountPath"]: mount["name"] for mount in sidecar["volumeMounts"]}
    assert {arguments.output_dir, str(Path(arguments.ready_file).parent)} <= set(mounts)
    (app,) = pod["containers"]
    (mount,) = app["volumeMounts"]
    assert (mount["name"], mount["readOnly"]) == (mounts[arguments.output_dir], True), "not the pod's own token"
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts.values())
    assert pod["automountServiceAccountToken"] is False
