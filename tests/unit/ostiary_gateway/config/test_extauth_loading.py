"""What the doors of a configuration must agree on with the rest."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.config import loads
from ostiary_gateway.config.extauth_loading import headers_dropped, upstreams_of
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.http1.headers import HeaderNames

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


def test_what_is_without_effect_without_a_server_is_told(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for key in ["identity", "tls", "tokenFile", "health", "connections", "queue", "timeouts", "insecure"]:
        with subtests.test(key=key):
            tmp_path = tmp_path_factory.mktemp("case")
            values = {
                "identity": "none",
                "tls": {},
                "tokenFile": "secret",
                "health": "/x",
                "timeouts": {},
                "insecure": True,
            }
            assert f"upstreams[0].{key}" in problems(tmp_path, DOOR, upstreams=[{**SHOP, key: values.get(key, 7)}])


def test_each_mistake_of_a_door_is_told_at_its_place(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"callers": {}}, "callers"),
        ({"callers": {"names": ["nginx"]}}, "callers"),
        ({"upstreams": ["unknown"]}, "upstreams"),
        ({"upstreams": []}, "upstreams"),
        ({"proxy": "apache"}, "proxy"),
        ({"extra": ["Scope"]}, "extra"),
        ({"extra": ["a/b"]}, "extra"),
        ({"name": "Edge"}, "name"),
        ({"path": "/x"}, "path"),
    ]
    for change, place in cases:
        with subtests.test(change=change, place=place):
            tmp_path = tmp_path_factory.mktemp("case")
            assert f"doors[0].{place}" in problems(tmp_path, {**DOOR, **change})


APP = {"name": "app", "attributes": "http", "auth": "browser", "hosts": ["app.example"], "public": ["/healthz"]}
OUTSIDE = {"externalURL": "https://gateway.example"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hosts": ["gateway.example"]}, "needs a host of its own"),
        ({"hosts": ["app.example", "gateway.example"]}, "needs a host of its own"),
        ({"passAuthorization": True}, "which needs the built-in proxy"),
    ],
)
def test_what_needs_the_built_in_proxy_is_at_no_door(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    upstreams = [SHOP, {**APP, "server": "https://app.example", **change}]
    assert message in problems(tmp_path, DOOR, upstreams=upstreams, **OUTSIDE)["doors[0].upstreams"]
    load(tmp_path, {**DOOR, "upstreams": ["shop"]}, upstreams=upstreams, **OUTSIDE)
    without_hosts = {"name": "app", "attributes": "http", "auth": "browser", "prefix": "/app"}
    told = problems(tmp_path, DOOR, upstreams=[SHOP, without_hosts], **OUTSIDE)
    assert "needs a host of its own" in told["doors[0].upstreams"]


def test_a_door_says_at_which_port_browsers_find_its_web_applications(tmp_path: Path) -> None:
    config = load(tmp_path, {**DOOR, "port": 8080}, upstreams=[APP], **OUTSIDE)
    assert config.doors[0].port == 8080
    assert load(tmp_path, DOOR, upstreams=[APP], **OUTSIDE).doors[0].port is None
    for port in (0, 65536, "x"):
        assert "doors[0].port" in problems(tmp_path, {**DOOR, "port": port}, upstreams=[APP], **OUTSIDE)
    assert "without effect" in problems(tmp_path, {**DOOR, "port": 8080})["doors[0].port"]


def test_an_upstream_without_a_server_can_be_told_by_a_jwt(tmp_path: Path) -> None:
    (tmp_path / "issuer-secret").write_text("0" * 64)
    (tmp_path / "issuer-secret").chmod(0o600)
    issuer = {"audiences": ["prod"], "keys": {"secretFile": "issuer-secret"}}
    more = {**OUTSIDE, "issuer": issuer, "store": {"type": "sqlite", "path": "tokens.db"}}
    load(tmp_path, DOOR, upstreams=[{**APP, "identity": "assertion"}], **more)


def test_two_doors_have_two_names(tmp_path: Path) -> None:
    assert problems(tmp_path, DOOR, DOOR) == {"doors[1].name": "duplicate name"}


def test_no_upstream_is_below_the_doors(tmp_path: Path) -> None:
    assert "upstreams[0].prefix" in problems(tmp_path, DOOR, upstreams=[{**SHOP, "prefix": "/doors/x"}])


# --- by gRPC ---

GRPC = {**DOOR, "proxy": "envoy-grpc"}


def listen(address: str = "127.0.0.1:8445", **more: Any) -> dict[str, Any]:
    return {"address": "127.0.0.1:8443", "grpc": {"address": address}, **more}


def test_a_door_that_is_asked_by_grpc_needs_the_listener(tmp_path: Path) -> None:
    assert problems(tmp_path, GRPC) == {"doors[0].proxy": "the gateway does not listen for gRPC"}
    config = load(tmp_path, GRPC, listen=listen())
    assert config.listen.grpc is not None
    assert str(config.listen.grpc.address) == "127.0.0.1:8445"


def test_without_tls_grpc_is_served_on_the_loopback_alone_whatever_else_is_allowed(tmp_path: Path) -> None:
    found = problems(tmp_path, GRPC, listen=listen("10.0.0.4:8445", insecure=True))
    assert "plain text" in found["listen.grpc"]


@pytest.mark.parametrize("address", ["127.0.0.1:8443", "127.0.0.1:8444"])
def test_grpc_has_an_address_of_its_own(tmp_path: Path, address: str) -> None:
    assert problems(tmp_path, GRPC, listen=listen(address))


def test_a_missing_library_is_told_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As Python itself marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "h2", None)
    assert problems(tmp_path, GRPC, listen=listen()) == {"listen.grpc": "the library h2 is missing"}


def test_a_web_application_needs_a_proxy_that_asks_by_http(tmp_path: Path) -> None:
    """Browsers come back from sign-in through it."""
    door = {**DOOR, "proxy": "envoy-grpc"}
    told = problems(tmp_path, door, upstreams=[APP], externalURL="http://localhost:8443", listen=listen())
    assert "asks by HTTP" in told["doors[0].upstreams"]


# --- HAProxy ---

CARRIER = {"name": "edge", "proxy": "haproxy", "callers": {"tokenFile": "secret"}}
AGENT = {"agent": {"address": "127.0.0.1:9345"}}


def test_a_door_of_haproxy_has_its_own_address(tmp_path: Path) -> None:
    (door,) = load(tmp_path, CARRIER | AGENT | {"decisions": {"socket": "run/haproxy.sock"}}).doors
    assert door.agent is not None
    assert door.decisions is not None
    assert (str(door.agent.address), door.decisions.socket) == ("127.0.0.1:9345", tmp_path / "run/haproxy.sock")
    assert problems(tmp_path, CARRIER) == {"doors[0].agent": "HAProxy asks at an address of its own"}


@pytest.mark.parametrize("address", ["127.0.0.1:8443", "127.0.0.1:8444", "127.0.0.1:9345", "127.0.0.1:0"])
def test_an_address_that_something_else_has_is_refused(tmp_path: Path, address: str) -> None:
    other = {"name": "other", "proxy": "haproxy", "callers": {"tokenFile": "secret"}, "agent": {"address": address}}
    sections = {"listen": {"address": "127.0.0.1:8443"}, "health": {"address": "127.0.0.1:8444"}}
    assert "doors[1].agent" in problems(tmp_path, CARRIER | AGENT, other, **sections)


def test_beyond_the_loopback_haproxy_asks_over_tls_only(tmp_path: Path) -> None:
    door = CARRIER | {"agent": {"address": "0.0.0.0:9345"}}
    assert problems(tmp_path, door) == {"doors[0].agent": "tokens would cross the network in plain text"}


def test_no_other_proxy_has_an_agent_or_decisions(tmp_path: Path) -> None:
    given = DOOR | AGENT | {"decisions": {"socket": "x"}}
    assert set(problems(tmp_path, given)) == {"doors[0].agent", "doors[0].decisions"}


@pytest.mark.parametrize("file", ["maps", "/etc/a map", "/etc/a;b", "/etc/a\nb", "/"])
def test_a_map_that_could_be_a_command_is_refused(tmp_path: Path, file: str) -> None:
    door = CARRIER | AGENT | {"decisions": {"socket": "x", "map": file}}
    assert "doors[0].decisions.map" in problems(tmp_path, door)


def test_the_headers_by_which_our_own_proxy_tells_users_pass_no_door(tmp_path: Path) -> None:
    """An upstream that is carried by both believes them."""
    own = HeaderNames(user="X-App-User", extra_prefix="X-App-Extra-")
    config = load(tmp_path, DOOR, listen={"dropHeaders": ["X-Mine"]})
    config = replace(config, upstreams=tuple(replace(each, headers=own) for each in config.upstreams))
    assert headers_dropped(config) == ("X-Mine", "X-App-Extra-*", "X-App-User")
