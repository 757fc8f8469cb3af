"""A small CONNECT proxy that remembers its tunnels, and knows when a client has left one.

Every target is looked for on loopback whatever its name, so a test can have a server that is not
called localhost. It is also how the tests see from outside which connections a client keeps open.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.serving import serving

PATIENCE = 30.0


@dataclass
class Tunnel:
    """One CONNECT: where to, with which headers, and whether the client has closed its end."""

    target: str
    headers: dict[str, str]
    left: threading.Event = field(default_factory=threading.Event)

    def wait_until_left(self) -> None:
        assert self.left.wait(PATIENCE), f"the client still holds its connection to {self.target}"


class ConnectProxy:
    def __init__(self) -> None:
        self.tunnels: list[Tunnel] = []
        self._server = _Server(("127.0.0.1", 0), _handler_for(self))
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def targets(self) -> list[str]:
        return [tunnel.target for tunnel in self.tunnels]

    @contextmanager
    def running(self) -> Iterator[ConnectProxy]:
        with serving(self._server):
            yield self


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    # Tunnels end when their two ends do; nobody waits for them.
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def _handler_for(proxy: ConnectProxy) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        # Unbuffered: what follows the head belongs to the tunnel.
        rbufsize = 0

        def handle(self) -> None:
            method, target, _ = self.rfile.readline().decode().split()
            headers = dict(self._headers())
            if method != "CONNECT":
                self.wfile.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
                return
            tunnel = Tunnel(target, headers)
            proxy.tunnels.append(tunnel)
            with socket.create_connection(("127.0.0.1", int(target.rpartition(":")[2]))) as upstream:
                upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=_pump, args=(upstream, self.connection), daemon=True)
                back.start()
                _pump(self.connection, upstream)
                tunnel.left.set()
                back.join()

        def _headers(self) -> Iterator[tuple[str, str]]:
            while line := self.rfile.readline().decode().strip():
                name, _, value = line.partition(":")
                yield name.lower(), value.strip()

    return Handler


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until *source* ends, then tell *sink* that no more will come."""
    while data := _received(source):
        # Read on even when the other end is gone: only the end of *source* may end this.
        with suppress(OSError):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""
