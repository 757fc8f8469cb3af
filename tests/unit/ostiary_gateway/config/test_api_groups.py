"""What API plugins of a configuration must agree on with the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError
from ostiary_gateway.config import loads
from ostiary_gateway.config.api_plugins import group_mistake, version_mistake
from ostiary_gateway.config.gateway_config import GatewayConfig

CLUSTER = {"name": "cluster", "server": "http://127.0.0.1:1", "attributes": "kubernetes"}
PLUGIN: dict[str, Any] = {
    "group": "builds.example.com",
    "versions": ["v1"],
    "upstream": "cluster",
    "server": "https://127.0.0.1:9443",
    "tls": {"ca": "ca.pem"},
}
PAIR = {"certificate": "tls.pem", "key": "tls.key"}


@pytest.fixture
def folder(tmp_path: Path, ca: trustme.CA) -> Path:
    leaf = ca.issue_cert("gateway")
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.pem"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    return tmp_path


def load(folder: Path, *plugins: dict[str, Any], section: dict[str, Any] = PAIR, **more: Any) -> GatewayConfig:
    text = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "listen": {"address": "127.0.0.1:0"},
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
        "upstreams": [CLUSTER],
        "apiPlugins": {**section, "declared": list(plugins)},
        **more,
    }
    return loads(json.dumps(text), directory=folder)


def problems(folder: Path, *plugins: dict[str, Any], **more: Any) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        load(folder, *plugins, **more)
    return {problem.place.path: problem.message for problem in caught.value.problems}


def test_a_plugin_is_called_after_its_upstream_and_its_group(folder: Path) -> None:
    (plugin,) = load(folder, PLUGIN).api_plugins.declared
    assert plugin.name == "cluster.builds.example.com"
    assert load(folder, section={}).api_plugins.declared == ()


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        ({"group": "apps"}, "group", "domain of its own"),
        ({"group": ""}, "group", "empty"),
        ({"group": "metrics.k8s.io"}, "group", "reserved"),
        ({"group": "k8s.io"}, "group", "not the name|reserved"),
        ({"group": "x.ostiary.dev"}, "group", "reserved"),
        ({"group": "x.kubernetes.io"}, "group", "reserved"),
        ({"versions": []}, "versions", "required"),
        ({"versions": ["1"]}, "versions", "version"),
        ({"versions": ["v1", "v1"]}, "versions", "duplicate"),
        ({"upstream": "other"}, "upstream", "unknown upstream"),
        ({"server": "http://127.0.0.1:1"}, "server", "only https"),
        ({"server": "https://127.0.0.1:1/x"}, "server", "path"),
        ({"tls": {}}, "tls", "public certificate"),
        ({"health": "readyz"}, "health", "plain path"),
        ({"name": "builds"}, "name", "unknown"),
    ],
)
def test_each_mistake_is_told_at_its_place(folder: Path, change: dict[str, Any], place: str, message: str) -> None:
    noted = problems(folder, {**PLUGIN, **change})
    assert any(part in noted[f"apiPlugins.declared[0].{place}"] for part in message.split("|")), noted


def test_both_sides_prove_themselves_or_it_is_a_mistake(folder: Path) -> None:
    noted = problems(folder, PLUGIN, section={})
    assert "claim to be the gateway" in noted["apiPlugins.declared[0].tls"]
    own = {**PLUGIN, "tls": {"ca": "ca.pem", **PAIR}}
    assert load(folder, own, section={}).api_plugins.declared[0].tls.certificate is not None
    pinned = {**PLUGIN, "tls": {"pins": ["ab" * 32]}}
    assert load(folder, pinned).api_plugins.declared[0].tls.pins == {"ab" * 32}


def test_half_a_pair_is_a_mistake(folder: Path) -> None:
    assert problems(folder, section={"certificate": "tls.pem"}) == {
        "apiPlugins.certificate": "set both the certificate and its key"
    }


def test_two_plugins_for_one_group_beside_one_upstream_are_a_mistake(folder: Path) -> None:
    assert "apiPlugins.declared[1].group" in problems(folder, PLUGIN, {**PLUGIN, "server": "https://127.0.0.1:2"})
    two = [{**CLUSTER, "hosts": ["one"]}, {**CLUSTER, "name": "other", "hosts": ["two"]}]
    assert len(load(folder, PLUGIN, {**PLUGIN, "upstream": "other"}, upstreams=two).api_plugins.declared) == 2


@pytest.mark.parametrize(
    "upstream",
    [
        {"attributes": "http"},
        {"prefix": "/clusters/east"},
    ],
)
def test_it_stands_beside_a_kubernetes_api_whose_paths_are_known(folder: Path, upstream: dict[str, Any]) -> None:
    assert "apiPlugins.declared[0].upstream" in problems(folder, PLUGIN, upstreams=[{**CLUSTER, **upstream}])
    stripped = {**CLUSTER, "prefix": "/clusters/east", "stripPrefix": True}
    assert load(folder, PLUGIN, upstreams=[stripped])


@given(st.text(alphabet="abz019.-/%AZ_ é\n", max_size=40))
def test_a_group_can_be_written_in_a_path_in_one_way_only(text: str) -> None:
    if not group_mistake(text):
        assert "." in text
        assert text == text.lower()
        assert all(part and part[0] != "-" and part[-1] != "-" and part.isascii() for part in text.split("."))
        assert not set(text) & set("/%_ \n")


@given(st.text(alphabet="v019alphbet./%\n", max_size=12))
def test_a_version_is_one_of_kubernetes(text: str) -> None:
    if not version_mistake(text):
        assert text.startswith("v")
        assert text.isalnum()
