"""What ``from`` needs, and what does not go with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config import loads
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.interfaces.upstream_capabilities import FollowsUpstream

CLUSTER = {"name": "cluster", "server": "http://127.0.0.1:1", "attributes": "kubernetes"}
API = {"name": "api", "server": "http://127.0.0.1:1", "prefix": "/billing", "attributes": "http"}


def load(folder: Path, *chain: dict[str, Any]) -> GatewayConfig:
    links = [
        {"name": f"rbac-{number}", "type": "rbac", "upstreams": "all", **each} for number, each in enumerate(chain)
    ]
    config = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": links},
        "upstreams": [CLUSTER, API],
    }
    return loads(json.dumps(config), directory=folder)


def test_a_wrong_setting_stops_the_start(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"from": {"upstream": "nowhere"}}, "unknown upstream"),
        ({"from": {"upstream": "api"}}, "no Kubernetes API server"),
        ({"from": {"upstream": "cluster"}, "paths": ["policy"]}, "paths is for a policy in files"),
        ({"from": {"upstream": "cluster"}, "defaults": True}, "defaults is for a policy in files"),
        ({"from": {"upstream": "cluster", "maxStale": "1s"}}, "at least 30s"),
        ({"from": {"upstream": "cluster", "maxEntries": 3_000_000}}, "at most 2000000"),
        ({"from": {}}, "upstream"),
        ({}, "rbac needs the files"),
    ]
    for settings, message in cases:
        with subtests.test(settings=settings, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "policy").mkdir()
            with pytest.raises(ConfigurationError) as raised:
                load(tmp_path, settings)
            assert message in str(raised.value)


def test_a_chain_may_have_files_and_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    config = load(tmp_path, {"paths": ["policy"]}, {"from": {"upstream": "cluster"}})
    files, cluster = (ability(link.instance, FollowsUpstream) for link in config.authorization.chain)
    assert files is None
    assert cluster is not None
    assert cluster.following.upstream == "cluster"
    assert cluster.following.needs().verbs == ("list", "watch")
