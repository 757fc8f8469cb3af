"""A TLS server whose every byte the test writes, for answers that no well-behaved server gives."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import trustme

Serve = Callable[[ssl.SSLSocket], None]


class RawServer:
    """Calls *serve* with each connection, in a thread of its own; `url` is its address."""

    def __init__(self, ca: trustme.CA, serve: Serve, *, protocols: Sequence[str] = ("http/1.1",)) -> None:
        self._serve = serve
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.set_alpn_protocols(list(protocols))
        ca.issue_cert("localhost").configure_cert(self._context)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"https://localhost:{self.port}"

    @contextmanager
    def running(self) -> Iterator[RawServer]:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            # Closing does not wake a thread that waits in accept(); this does.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
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
