"""The example of a pod with the agent: Kubernetes knows every field, and its command line is one that exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ostiary.cli.agent.command import configure
from ostiary.cli.arguments import Parser
from tests.support.deploy.object_schema import mistakes

ROOT = Path(__file__).parents[2]


def deployment() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "deploy/kubernetes/agent-sidecar.yaml").read_text())
    return loaded


def test_kubernetes_knows_every_field() -> None:
    assert list(mistakes(deployment())) == []


def test_the_agent_and_its_probes_have_the_same_socket_and_volumes_that_are_there() -> None:
    pod = deployment()["spec"]["template"]["spec"]
    (agent,) = pod["initContainers"]
    parser = Parser()
    configure(parser)
    arguments = parser.parse_args(agent["args"][1:])
    assert agent["args"][0] == "agent"
    for probe in (agent["startupProbe"], agent["livenessProbe"]):
        probed = parser.parse_args(probe["exec"]["command"][2:])
        assert (probed.probe, probed.socket) == (True, arguments.socket)
    mounts = {mount["mountPath"]: mount["name"] for mount in agent["volumeMounts"]}
    assert {arguments.dir, str(Path(arguments.socket).parent)} <= set(mounts)
    (app,) = pod["containers"]
    shared = {mount["name"] for mount in app["volumeMounts"]}
    assert shared == {mounts[arguments.dir]}, "the application sees neither the proof nor the socket"
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts.values())
    assert pod["automountServiceAccountToken"] is False
