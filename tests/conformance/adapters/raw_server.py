"""A TLS server whose every byte the test writes, for answers that no well-behaved server gives."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress

import trustme

from tests.support.http_server import server_context
from tests.support.socket_server import SocketServer

Serve = Callable[[ssl.SSLSocket], None]


class RawServer(SocketServer):
    """Calls *serve* with each connection, in a thread of its own; `url` is its address."""

    def __init__(self, ca: trustme.CA, serve: Serve, *, protocols: Sequence[str] = ("http/1.1",)) -> None:
        super().__init__()
        self._serve = serve
        self._context = server_context(ca, "localhost")
        self._context.set_alpn_protocols(list(protocols))
        self.url = f"https://localhost:{self.port}"

    def serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, self._context.wrap_socket(connection, server_side=True) as tls:
            self._serve(tls)


def read_head(connection: ssl.SSLSocket) -> list[str]:
    """The lines of a request without a body; empty when the client has left."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        data = connection.recv(4096)
        if not data:
            return []
        head += data
    return head.decode().split("\r\n")[:-2]


def header(head: Sequence[str], name: str) -> list[str]:
    lines = (line.partition(": ") for line in head[1:])
    return [value for key, _, value in lines if key.lower() == name.lower()]
