"""Proxies with what ``ostiary-gateway door`` prints, before upstreams with https: whose certificate they take."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.model import UserInfo
from tests.support.door_cases import Case
from tests.support.doors import Client, EchoUpstream, printed, printed_haproxy, running
from tests.support.gateway import Site
from tests.support.ports import free_port

pytestmark = [pytest.mark.needs("nginx"), pytest.mark.needs("haproxy"), pytest.mark.timeout(120)]

NEWEST, OLDEST = ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2
OTHER = "other.example"


class TlsEcho(EchoUpstream):
    """The same over TLS, of one *version*, with a certificate for *name*. `asked_for` are the names in handshakes."""

    def __init__(self, ca: trustme.CA, name: str, version: ssl.TLSVersion = NEWEST) -> None:
        super().__init__()
        self.asked_for: set[str | None] = set()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = self._tls.maximum_version = version
        self._tls.sni_callback = lambda _, name, __: self.asked_for.add(name)
        ca.issue_cert(name).configure_cert(self._tls)

    def serve(self, connection: socket.socket) -> None:
        # A proxy that does not like the certificate hangs up.
        with connection, suppress(OSError), self._tls.wrap_socket(connection, server_side=True) as encrypted:
            super().serve(encrypted)


# By upstream: the host of its URL, which of the echoes it is, what it says of `tls`, and whether it may be reached.
UPSTREAMS: dict[str, tuple[str, str, dict[str, str], bool]] = {
    "right": ("localhost", "localhost", {}, True),
    "other": ("localhost", OTHER, {}, False),
    "named": ("localhost", OTHER, {"serverName": OTHER}, True),
    "misnamed": ("localhost", "localhost", {"serverName": OTHER}, False),
    "foreign": ("localhost", "foreign", {}, False),
    "address": ("127.0.0.1", "127.0.0.1", {}, True),
    "other-address": ("127.0.0.1", "127.0.0.2", {}, False),
    "no-address": ("127.0.0.1", "localhost", {}, False),
}
COMPARE_NAMES_ONLY = ("nginx", "haproxy")
KINDS = ("nginx", "traefik", "caddy", "envoy", "envoy-grpc", "haproxy")


class Doors:
    """A gateway with a door for each kind of proxy, before the same upstreams."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.site = Site(folder / "gateway", trustme.CA())
        (self.site.folder / "secret").write_text("the-secret-of-this-door\n")
        ca, foreign = self.site.ca, trustme.CA()
        echoes = {name: TlsEcho(ca, name) for name in ("localhost", "127.0.0.1", "127.0.0.2")}
        echoes |= {OTHER: TlsEcho(ca, OTHER, OLDEST), "foreign": TlsEcho(foreign, "localhost")}
        self.echoes = {name: stack.enter_context(echo) for name, echo in echoes.items()}
        self._sections = self._made_sections()
        self.gateway = stack.enter_context(self.site.in_process(**self._sections))
        tokens = self.gateway.worker.app.shared.tokens
        issued = self.gateway.call(lambda: tokens.issue(UserInfo("alice"), provider="staff"))
        self.token = issued.token.reveal()

    def _made_sections(self) -> dict[str, Any]:
        upstreams = [
            {
                **{"name": name, "hosts": [f"{name}.example"], "attributes": "http"},
                **{"server": f"https://{host}:{self.echoes[echo].port}", "tls": {"ca": "ca.pem", **tls}},
            }
            for name, (host, echo, tls, _) in UPSTREAMS.items()
        ]
        return {
            "upstreams": upstreams,
            "doors": [_door(kind) for kind in KINDS],
            "authorization": {"chain": [{"name": "all", "type": "allow_all", "upstreams": "all"}]},
            "listen": {"grpc": {"address": "127.0.0.1:0"}},
        }

    def printed(self, kind: str, port: int) -> str:
        config = self.site.write_config(**self._sections)
        listen = ("--listen", f"127.0.0.1:{port}")
        if kind == "haproxy":
            return printed_haproxy(config, *listen)
        url = f"https://localhost:{self.gateway.grpc_port}" if kind == "envoy-grpc" else self.gateway.url()
        return printed(kind, config, *listen, "--gateway", url, "--ca", str(self.site.folder / "ca.pem"))


def _carried(kind: str) -> list[str]:
    return [name for name in UPSTREAMS if kind not in COMPARE_NAMES_ONLY or "address" not in name]


def _door(kind: str) -> dict[str, Any]:
    agent = {"agent": {"address": f"127.0.0.1:{free_port()}"}} if kind == "haproxy" else {}
    return {"name": kind, "proxy": kind, "callers": {"tokenFile": "secret"}, "upstreams": _carried(kind), **agent}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with ExitStack() as stack:
        yield Doors(tmp_path_factory.mktemp("https"), stack)


@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_takes_only_the_certificate_of_the_upstream_itself(doors: Doors, kind: str, tmp_path: Path) -> None:
    port = free_port()
    doors.echoes[OTHER].asked_for.clear()
    with running(kind, tmp_path / kind, doors.printed(kind, port), port, host="right.example") as client:
        reached = {name: _is_reached(doors, client, kind, name) for name in _carried(kind)}
    assert reached == {name: UPSTREAMS[name][-1] for name in _carried(kind)}
    assert OTHER in doors.echoes[OTHER].asked_for


def _is_reached(doors: Doors, client: Client, kind: str, name: str) -> bool:
    case = f"{kind} {name}"
    reply = client.send(Case(case, "/x", host=f"{name}.example").request(doors.token))
    has_arrived = any(case in echo.seen for echo in doors.echoes.values())
    assert (reply.status, has_arrived) in ((200, True), (500, False), (502, False), (503, False)), (case, reply)
    return has_arrived
