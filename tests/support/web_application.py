"""A web application of a test: pages that say what they were asked for, and a WebSocket that says it again.

It is in threads, knows nothing of the gateway, and keeps what it saw: the bytes of each head.
"""

from __future__ import annotations

import hashlib
import html
import socketserver
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from tests.support.serving import serving

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_PAGE = """<!doctype html><html lang="en"><title>{name}</title><body>
<h1>{name}</h1><p id="target">{target}</p><a href="/auth/logout">Leave</a></body></html>"""


@dataclass(frozen=True)
class SeenRequest:
    """The head of a request; `lines` are its header lines as they came."""

    method: str
    target: str
    lines: tuple[str, ...]

    def all(self, name: str) -> list[str]:
        pairs = (line.partition(":") for line in self.lines)
        return [value.strip() for key, _, value in pairs if key.lower() == name.lower()]


class WebApplication:
    """`url`, and `seen`: every request that came. *cookie* is one that its pages set."""

    def __init__(self, name: str, *, cookie: str = "") -> None:
        self.name = name
        self.cookie = cookie
        self.seen: list[SeenRequest] = []
        self.closed = threading.Event()
        """A WebSocket has ended."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.application = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[Self]:
        with serving(self._server):
            yield self

    @property
    def last(self) -> SeenRequest:
        return self.seen[-1]

    @property
    def page(self) -> SeenRequest:
        """The last page that was asked for; browsers ask for an icon beside it."""
        return next(seen for seen in reversed(self.seen) if seen.target != "/favicon.ico")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    application: WebApplication


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        while request := self._head():
            self.server.application.seen.append(request)
            if key := request.all("Sec-WebSocket-Key"):
                self._echo(key[0].encode())
                return
            length = int((request.all("Content-Length") or ["0"])[0])
            self.rfile.read(length)
            self._answer(request)

    def _head(self) -> SeenRequest | None:
        lines = []
        while (line := self.rfile.readline()).strip():
            lines.append(line.decode("latin-1").rstrip("\r\n"))
        if not lines:
            return None
        method, target, _ = lines[0].split(" ")
        return SeenRequest(method, target, tuple(lines[1:]))

    def _answer(self, request: SeenRequest) -> None:
        application = self.server.application
        body = _PAGE.format(name=application.name, target=html.escape(request.target)).encode()
        cookie = f"Set-Cookie: {application.cookie}\r\n" if application.cookie else ""
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{cookie}Content-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + (b"" if request.method == "HEAD" else body))

    def _echo(self, key: bytes) -> None:
        accept = b64encode(hashlib.sha1(key + MAGIC, usedforsecurity=False).digest()).decode()
        lines = ("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade")
        self.wfile.write("\r\n".join((*lines, f"Sec-WebSocket-Accept: {accept}", "", "")).encode())
        try:
            while start := self.rfile.read(2):
                length = start[1] & 0x7F
                mask, data = self.rfile.read(4), self.rfile.read(length)
                text = bytes(byte ^ mask[number % 4] for number, byte in enumerate(data))
                if start[0] & 0x0F == 8:
                    break
                self.wfile.write(bytes((start[0], len(text))) + text)
        except OSError:
            pass
        self.server.application.closed.set()
