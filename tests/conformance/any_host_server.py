"""A server that is every host at once, and a proxy too: it answers ``GET /api`` and remembers how it was asked.

Connections are led to it whatever their name and port (`leading_here`), so no name is looked up. One port speaks
TLS and plain HTTP, and takes CONNECT: the first bytes tell which.
"""

from __future__ import annotations

import gzip
import json
import socket
import socketserver
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_server import common_name
from tests.support.serving import serving
from tests.support.vectors import VECTORS

TLS_HANDSHAKE = 0x16
PATIENCE = 30.0


def fixtures() -> dict[str, str]:
    """Certificates and keys (PEM) by the names that the vectors use."""
    with gzip.open(VECTORS / "fixtures.json.gz", "rt", encoding="ascii") as file:
        names: dict[str, str] = json.load(file)
        return names


def fill_in(text: str, *, folder: Path, pems: dict[str, str]) -> str:
    """*text* of a vector with its ``@@NAME@@`` replaced."""
    for name, pem in pems.items():
        text = text.replace(f"@@{name}@@", json.dumps(pem)[1:-1]).replace(f"@@{name}:raw@@", pem)
        text = text.replace(f"@@{name}:base64@@", b64encode(pem.encode()).decode())
    return text.replace("@@dir@@", str(folder))


@dataclass
class Asked:
    """One request, as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    tls: bool = False
    sni: str | None = None
    certificate: str | None = None
    proxied: dict[str, str] | None = None
    status: int = 200

    def all(self, prefix: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, value in self.headers:
            if name.lower().startswith(prefix.lower()):
                found.setdefault(name.title(), []).append(value)
        return found

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass
class AnyHostServer:
    folder: Path
    asked: list[Asked] = field(default_factory=list)
    dialed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        pems = fixtures()
        for name in ("ca", "server_cert", "server_key"):
            (self.folder / name).write_text(pems[name])
        self._names: dict[int, str | None] = {}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server_cert", self.folder / "server_key")
        context.load_verify_locations(self.folder / "ca")
        context.verify_mode = ssl.CERT_OPTIONAL
        context.sni_callback = lambda connection, name, _: self._names.update({id(connection): name})
        self.context = context
        self._server = _Server(("127.0.0.1", 0), _handler_for(self))

    @contextmanager
    def running(self) -> Iterator[AnyHostServer]:
        with serving(self._server):
            yield self

    def forget(self) -> None:
        self.asked.clear()
        self.dialed.clear()

    def secured(self, connection: socket.socket) -> tuple[ssl.SSLSocket, str | None]:
        wrapped = self.context.wrap_socket(connection, server_side=True)
        return wrapped, self._names.pop(id(wrapped), None)

    @contextmanager
    def leading_here(self) -> Iterator[None]:
        """Every connection that this process dials ends here; `dialed` tells where it was meant to go."""
        real: Callable[..., socket.socket] = socket.create_connection

        def create_connection(address: tuple[str, int], *arguments: Any, **options: Any) -> socket.socket:
            host, port = address
            self.dialed.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            return real(self._server.server_address, *arguments, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "create_connection", create_connection)
            yield


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def _handler_for(server: AnyHostServer) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(PATIENCE)
            with suppress(OSError):
                self._serve(self.request, None, tls=False)

        def _serve(self, connection: socket.socket, proxied: dict[str, str] | None, *, tls: bool) -> None:
            first = connection.recv(1, socket.MSG_PEEK)
            sni = certificate = None
            if first and first[0] == TLS_HANDSHAKE:
                connection, sni = server.secured(connection)
                certificate, tls = common_name(connection), True
            while head := _head(connection):
                method, target, headers = head
                if method == "CONNECT":
                    authorization = Asked(method, target, headers).header("Proxy-Authorization")
                    proxied = {"target": target, **({"proxyAuthorization": authorization} if authorization else {})}
                    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    return self._serve(connection, proxied, tls=False)
                asked = Asked(method, target, headers, tls, sni, certificate, proxied)
                asked.status = _status(asked.header("Authorization") or "")
                server.asked.append(asked)
                connection.sendall(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n{}" % asked.status)
            return None

    return Handler


def _head(connection: socket.socket) -> tuple[str, str, list[tuple[str, str]]] | None:
    # A client waits for the answer to its head before it sends more, so nothing can follow it here.
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        chunk = connection.recv(65536)
        if not chunk:
            return None
        data += chunk
    first, *rest = data.decode("utf-8", "surrogateescape").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = [(name, value.strip(" \t")) for name, _, value in (line.partition(":") for line in rest if line)]
    return method, target, headers


def _status(authorization: str) -> int:
    return 401 if "unauthorized" in authorization else 403 if "forbidden" in authorization else 200
