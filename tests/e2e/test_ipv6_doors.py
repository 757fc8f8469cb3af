"""Proxies with what ``ostiary-gateway door`` prints, where they, the gateway and the upstream are at IPv6 addresses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.model import UserInfo
from ostiary_gateway.config.gateway_config import GatewayConfig
from tests.support.door_cases import Case
from tests.support.doors import HOST, EchoUpstream, printed, printed_haproxy, running
from tests.support.gateway import Site
from tests.support.ports import free_port
from tests.support.tiers import missing

pytestmark = [pytest.mark.needs("nginx"), pytest.mark.needs("haproxy"), pytest.mark.timeout(120)]

LOOPBACK = "::1"
KINDS = ("nginx", "traefik", "caddy", "envoy", "envoy-grpc", "haproxy")


class Doors:
    """A gateway with a door for each kind of proxy, before one upstream."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.site = Site(folder / "gateway", trustme.CA())
        (self.site.folder / "secret").write_text("the-secret-of-this-door\n")
        self.echo = stack.enter_context(EchoUpstream(LOOPBACK))
        server = f"http://[{LOOPBACK}]:{self.echo.port}"
        self._sections: dict[str, Any] = {
            "upstreams": [{"name": "shop", "hosts": [HOST], "attributes": "http", "server": server}],
            "doors": [_door(kind) for kind in KINDS],
            "authorization": {"chain": [{"name": "all", "type": "allow_all", "upstreams": "all"}]},
            "listen": {"address": f"[{LOOPBACK}]:0", "grpc": {"address": f"[{LOOPBACK}]:0"}},
        }
        self.gateway = stack.enter_context(self.site.in_process(_without_tls, **self._sections))
        tokens = self.gateway.worker.app.shared.tokens
        self.token = self.gateway.call(lambda: tokens.issue(UserInfo("alice"), provider="staff")).token.reveal()

    def printed(self, kind: str, port: int) -> str:
        config = self.site.write_config(**self._sections)
        listen = ("--listen", f"[{LOOPBACK}]:{port}")
        if kind == "haproxy":
            return printed_haproxy(config, *listen)
        asked_at = self.gateway.grpc_port if kind == "envoy-grpc" else self.gateway.port
        return printed(kind, config, *listen, "--gateway", f"http://[{LOOPBACK}]:{asked_at}")


def _without_tls(config: GatewayConfig) -> GatewayConfig:
    # nginx and HAProxy compare a certificate with names only.
    return replace(config, listen=replace(config.listen, tls=None))


def _door(kind: str) -> dict[str, Any]:
    agent = {"agent": {"address": f"[{LOOPBACK}]:{free_port()}"}} if kind == "haproxy" else {}
    return {"name": kind, "proxy": kind, "callers": {"tokenFile": "secret"}, **agent}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    try:
        socket.create_server((LOOPBACK, 0), family=socket.AF_INET6).close()
    except OSError:
        missing("an IPv6 loopback")
    with ExitStack() as stack:
        yield Doors(tmp_path_factory.mktemp("ipv6"), stack)


@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_reaches_gateway_and_upstream_at_an_ipv6_address(doors: Doors, kind: str, tmp_path: Path) -> None:
    port = free_port()
    with running(kind, tmp_path / kind, doors.printed(kind, port), port, address=LOOPBACK) as client:
        reply = client.send(Case(kind, "/x").request(doors.token))
    assert reply.status == 200, reply
    assert ("x-remote-user", "alice") in [(name.lower(), value) for name, value in doors.echo.seen[kind]["headers"]]
