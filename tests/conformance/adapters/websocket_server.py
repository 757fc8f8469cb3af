"""A server of websockets over TLS, as far as exec and port-forward need one: it says hello on either.

It is in threads, sees client certificates, and answers what is no websocket with an empty object.
"""

from __future__ import annotations

import hashlib
import json
import socketserver
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import trustme
from httpx import Headers

from tests.support.apiserver import Rules
from tests.support.http_server import Request, common_name, server_context
from tests.support.serving import serving

PROTOCOL = "v4.channel.k8s.io"
MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
STDOUT, STATUS = 1, 3
DATA, ERRORS = 0, 1
FORWARDED_PORT = 80
BINARY, CLOSE = 0x82, 0x88


class WebsocketServer:
    """`url`, `requests`, `statuses` and `rules`; `redirect_to` sends everybody elsewhere."""

    def __init__(self, ca: trustme.CA, *, hostname: str = "localhost") -> None:
        self.rules = Rules()
        self.requests: list[Request] = []
        self.statuses: list[int] = []
        self.redirect_to: str | None = None
        self.opened = threading.Event()
        self.gate: threading.Event | None = None
        """When given, the end of a stream waits for it."""
        context = server_context(ca, hostname, "127.0.0.1", client_certificates=ssl.CERT_OPTIONAL)
        self._server = _Server(("127.0.0.1", 0), _handler_for(self, context))
        self.port = self._server.server_address[1]
        self.url = f"https://{hostname}:{self.port}"

    @contextmanager
    def running(self) -> Iterator[WebsocketServer]:
        with serving(self._server):
            yield self


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False


def _handler_for(server: WebsocketServer, tls: ssl.SSLContext) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), tls.wrap_socket(self.request, server_side=True) as connection:
                self._answer(connection, _read(connection))

        def _answer(self, connection: ssl.SSLSocket, request: Request) -> None:
            server.requests.append(request)
            if server.redirect_to is not None:
                self._head(connection, 302, {"Location": server.redirect_to})
            elif not server.rules.admit(request):
                self._head(connection, 401, {"WWW-Authenticate": 'Bearer realm="test"'})
            elif "Upgrade" not in request.headers:
                self._head(connection, 200, {"Content-Type": "application/json", "Connection": "close"})
                connection.sendall(b"{}")
            else:
                self._head(connection, 101, _agreement(request))
                (self._forward if "/portforward" in request.path else self._execute)(connection)
                # Until the client has closed too, so that it reads all that was sent.
                while connection.recv(1024):
                    pass

        def _head(self, connection: ssl.SSLSocket, status: int, headers: dict[str, str]) -> None:
            server.statuses.append(status)
            lines = [f"HTTP/1.1 {status} Answer", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
            connection.sendall("\r\n".join(lines).encode())

        def _execute(self, connection: ssl.SSLSocket) -> None:
            connection.sendall(_frame(BINARY, bytes([STDOUT]) + b"hello\n"))
            server.opened.set()
            if server.gate is not None:
                server.gate.wait(30)
            status = json.dumps({"metadata": {}, "status": "Success"}).encode()
            connection.sendall(_frame(BINARY, bytes([STATUS]) + status) + _frame(CLOSE, b""))

        def _forward(self, connection: ssl.SSLSocket) -> None:
            # Both channels of a port begin with its number.
            port = FORWARDED_PORT.to_bytes(2, "little")
            for channel in (DATA, ERRORS):
                connection.sendall(_frame(BINARY, bytes([channel]) + port))
            connection.sendall(_frame(BINARY, bytes([DATA]) + b"hello"))

    return Handler


def _read(connection: ssl.SSLSocket) -> Request:
    with connection.makefile("rb") as file:
        method, path, _ = file.readline().decode().split()
        headers: list[tuple[str, str]] = []
        while line := file.readline().decode().strip():
            name, _, value = line.partition(":")
            headers.append((name, value.strip()))
    return Request(method, path, Headers(headers), certificate=common_name(connection))


def _agreement(request: Request) -> dict[str, Any]:
    digest = hashlib.sha1((request.headers.get("Sec-WebSocket-Key", "") + MAGIC).encode()).digest()
    return {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": b64encode(digest).decode(),
        "Sec-WebSocket-Protocol": PROTOCOL,
    }


def _frame(kind: int, payload: bytes) -> bytes:
    assert len(payload) < 126
    return bytes([kind, len(payload)]) + payload
