"""What the doors of a configuration must agree on with the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary.gateway.config import loads
from ostiary.gateway.config.doors import upstreams_of
from ostiary.gateway.config.settings import GatewayConfig

SHOP = {"name": "shop", "attributes": "http"}
DOOR = {"name": "edge", "proxy": "nginx", "callers": {"tokenFile": "secret"}}


def load(
    folder: Path, *doors: dict[str, Any], upstreams: list[dict[str, Any]] | None = None, **more: Any
) -> GatewayConfig:
    (folder / "secret").write_text("secret")
    text = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "listen": {"address": "127.0.0.1:0"},
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
        "upstreams": [SHOP] if upstreams is None else upstreams,
        "doors": list(doors),
        **more,
    }
    return loads(json.dumps(text), directory=folder)


def problems(folder: Path, *doors: dict[str, Any], **more: Any) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        load(folder, *doors, **more)
    return {problem.place.path: problem.message for problem in caught.value.problems}


def test_an_upstream_needs_no_server_if_a_door_leads_there(tmp_path: Path) -> None:
    config = load(tmp_path, DOOR)
    assert config.upstreams[0].server == ""
    assert [upstream.name for upstream in upstreams_of(config.doors[0], config.upstreams)] == ["shop"]


def test_an_upstream_that_nothing_reaches_is_a_mistake(tmp_path: Path) -> None:
    assert problems(tmp_path) == {"upstreams[0].server": "no request can reach it"}
    two = [SHOP, {"name": "other", "attributes": "http", "prefix": "/other"}]
    assert "upstreams[1].server" in problems(tmp_path, {**DOOR, "upstreams": ["shop"]}, upstreams=two)


@pytest.mark.parametrize(
    "key", ["identity", "tls", "tokenFile", "health", "connections", "queue", "timeouts", "insecure"]
)
def test_what_is_without_effect_without_a_server_is_told(tmp_path: Path, key: str) -> None:
    values = {"identity": "none", "tls": {}, "tokenFile": "secret", "health": "/x", "timeouts": {}, "insecure": True}
    assert f"upstreams[0].{key}" in problems(tmp_path, DOOR, upstreams=[{**SHOP, key: values.get(key, 7)}])


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"callers": {}}, "callers"),
        ({"callers": {"names": ["nginx"]}}, "callers"),
        ({"upstreams": ["unknown"]}, "upstreams"),
        ({"upstreams": []}, "upstreams"),
        ({"proxy": "apache"}, "proxy"),
        ({"extra": ["Scope"]}, "extra"),
        ({"extra": ["a/b"]}, "extra"),
        ({"name": "Edge"}, "name"),
        ({"path": "/x"}, "path"),
    ],
)
def test_each_mistake_of_a_door_is_told_at_its_place(tmp_path: Path, change: dict[str, Any], place: str) -> None:
    assert f"doors[0].{place}" in problems(tmp_path, {**DOOR, **change})


@pytest.mark.parametrize("setting", [{"auth": "browser"}, {"public": ["/app/healthz"]}])
def test_what_needs_the_built_in_proxy_is_at_no_door(tmp_path: Path, setting: dict[str, Any]) -> None:
    upstreams = [
        SHOP,
        {"name": "app", "attributes": "http", "prefix": "/app", "server": "https://app.example", **setting},
    ]
    more = {"externalURL": "https://gateway.example"}
    assert (
        "which needs the built-in proxy" in problems(tmp_path, DOOR, upstreams=upstreams, **more)["doors[0].upstreams"]
    )
    load(tmp_path, {**DOOR, "upstreams": ["shop"]}, upstreams=upstreams, **more)


def test_two_doors_have_two_names(tmp_path: Path) -> None:
    assert problems(tmp_path, DOOR, DOOR) == {"doors[1].name": "duplicate name"}


def test_no_upstream_is_below_the_doors(tmp_path: Path) -> None:
    assert "upstreams[0].prefix" in problems(tmp_path, DOOR, upstreams=[{**SHOP, "prefix": "/doors/x"}])
