"""A local server that plays parts of clouds: what a test answers to a path, and what it was asked."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    form: dict[str, str]
    headers: dict[str, str]


class CloudServer(ThreadingHTTPServer):
    """Answers by path: (status, headers, JSON). With an authority it speaks TLS."""

    def __init__(self, ca: trustme.CA | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        if ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            ca.issue_cert("127.0.0.1", "localhost").configure_cert(context)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.answers: dict[str, tuple[int, dict[str, str], Any]] = {}
        self.asked: list[Asked] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not trust us hangs up, which is no news."""

    @contextmanager
    def running(self) -> Iterator[CloudServer]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: CloudServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        form = {name: values[0] for name, values in parse_qs(body.decode() or url.query).items()}
        self.server.asked.append(Asked(self.command, url.path, form, dict(self.headers)))
        status, headers, answer = self.server.answers.get(url.path, (404, {}, {}))
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass
