"""A server for SubjectAccessReviews over TLS that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import trustme

from tests.support.serving import serving


@dataclass(frozen=True)
class Asked:
    path: str
    headers: dict[str, str]
    review: dict[str, Any]
    certificate: str | None


@dataclass(frozen=True)
class Reply:
    status: int = 201
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class ReviewServer:
    """`answer` turns a review into a `Reply`; None drops the connection without one."""

    def __init__(self, ca: trustme.CA, *, client_certificates: bool = False) -> None:
        self.asked: list[Asked] = []
        self.answer: Callable[[dict[str, Any]], Reply | None] = lambda review: status(review, allowed=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("localhost").configure_cert(context)
        if client_certificates:
            ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        self._http = _Server(("127.0.0.1", 0), _handler_for(self))
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://localhost:{self._http.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[ReviewServer]:
        with serving(self._http):
            yield self


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not trust us is no news."""


def status(review: dict[str, Any], *, code: int = 201, **said: Any) -> Reply:
    """The usual form of an answer."""
    return Reply(code, json.dumps({**review, "status": said}).encode())


def _handler_for(server: ReviewServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body in one piece: two small ones would wait for each other's acknowledgement.
        wbufsize = 65536

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            subject = (self.connection.getpeercert() or {}).get("subject", ())
            names = {key: value for ((key, value),) in subject}
            headers = {key.lower(): value for key, value in self.headers.items()}
            server.asked.append(Asked(self.path, headers, review, names.get("commonName")))
            reply = server.answer(review)
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for key, value in reply.headers:
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
