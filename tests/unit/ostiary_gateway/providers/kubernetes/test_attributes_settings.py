"""A mistake in the settings of capabilities is told, and stops the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.config import loads
from ostiary_gateway.middleware.config import loads as load_backend
from tests.support.scripted_gateway import ScriptedGateway

ENTRY = {"name": "kata", "resources": ["pods"], "fields": ["spec.runtimeClassName"]}


def load(folder: Path, capabilities: dict[str, Any]) -> Any:
    attributes = {"type": "kubernetes", "capabilities": capabilities}
    document = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "listen": {"address": "127.0.0.1:0"},
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
        "upstreams": [{"name": "k", "server": "https://10.0.0.1", "attributes": attributes}],
    }
    return loads(json.dumps(document), directory=folder).upstreams[0].attributes.instance


def test_a_mistake_stops_the_start(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "no capability is configured"),
        ({"preset": "baseline"}, "preset"),
        ({"entries": []}, "no capability is configured"),
        ({"entries": [{**ENTRY, "fields": []}]}, "fields"),
        ({"entries": [{**ENTRY, "fields": ["[*].x"]}]}, "it must begin with the name of a field"),
        ({"entries": [{**ENTRY, "resources": ["Pods"]}]}, "expected a resource"),
        ({"entries": [{**ENTRY, "name": "Kata"}]}, "lower-case"),
        ({"entries": [{**ENTRY, "value": ["x"]}]}, "value"),
    ]
    for capabilities, problem in cases:
        with subtests.test(capabilities=capabilities, problem=problem):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(ConfigurationError) as caught:
                load(tmp_path, capabilities)
            assert problem in str(caught.value)


def test_entries_and_the_preset_go_together(tmp_path: Path) -> None:
    assert load(tmp_path, {"preset": "podSecurity", "entries": [ENTRY]}).reads_bodies
    assert load(tmp_path, {"entries": [ENTRY]}).reads_bodies


def test_the_library_for_backends_reads_no_bodies(tmp_path: Path) -> None:
    """Nothing that is configured is ignored in silence."""
    with ScriptedGateway().running() as gateway:
        attributes = {"type": "kubernetes", "capabilities": {"preset": "podSecurity"}}
        settings = gateway.settings(tmp_path, attributes=attributes)
        with pytest.raises(ConfigurationError, match="read by a gateway"):
            load_backend(json.dumps(settings), directory=tmp_path)
