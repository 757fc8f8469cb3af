"""An HTTP or HTTPS server in threads, for tests: a function turns each request into a response.

with HttpServer(lambda request: Response(body={"path": request.path})).running() as server:
    httpx.get(f"{server.url}/pods")
assert server.requests[0].path == "/pods"
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

import trustme
from httpx import Headers, QueryParams

from tests.support.serving import serving


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    """The path with its query, as it was sent."""
    headers: Headers
    body: bytes = b""
    certificate: str | None = None
    """The common name of the client's certificate."""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> QueryParams:
        return QueryParams(urlsplit(self.target).query)

    @property
    def form(self) -> QueryParams:
        return QueryParams(self.body.decode())

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def bearer(self) -> str:
        """The bearer token; empty without one."""
        scheme, _, token = str(self.headers.get("Authorization", "")).partition(" ")
        return token if scheme == "Bearer" else ""


@dataclass(frozen=True)
class Response:
    """`body` is bytes, or an iterator of chunks that are sent one by one, or is sent as JSON."""

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)


HOLD = Response(503)
"""There is no response before the server stops."""

Handler = Callable[[Request], Response | None]


class HttpServer:
    """`url`, and `requests` in the order in which they came. `stopped` is set when the server ends.

    *handler* is the response to every request, or a function that runs in the thread of the connection. If it returns
    None, the connection is closed without a response.
    With an authority as *tls*, the server has a certificate for *hostname* and for 127.0.0.1.
    """

    def __init__(
        self, handler: Handler | Response, *, tls: ssl.SSLContext | trustme.CA | None = None, hostname: str = ""
    ) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.stopped = threading.Event()
        hostname = hostname or ("127.0.0.1" if tls is None else "localhost")
        if isinstance(tls, trustme.CA):
            tls = server_context(tls, hostname, "127.0.0.1")
        self._http = _Server(self, handler, tls)
        self.port = int(self._http.server_address[1])
        self.url = f"{'http' if tls is None else 'https'}://{hostname}:{self.port}"

    @contextmanager
    def running(self) -> Iterator[Self]:
        try:
            with serving(self._http):
                yield self
        finally:
            self.stopped.set()
            self._http.close_connections()


def server_context(ca: trustme.CA, *names: str, client_certificates: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLContext:
    """TLS with a certificate of *ca* for *names*. Client certificates must be of *ca*, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*names).configure_cert(context)
    ca.configure_trust(context)
    context.verify_mode = client_certificates
    return context


def common_name(connection: socket.socket) -> str | None:
    """The common name of the client's certificate, which the server has verified."""
    certificate = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
    names: Any = (certificate or {}).get("subject", ())
    return next((value for ((key, value),) in names if key == "commonName"), None)


class _Server(ThreadingHTTPServer):
    request_queue_size = 256

    def __init__(self, owner: HttpServer, handler: Handler | Response, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner, self._tls = owner, tls
        self.handler = (lambda request: handler) if isinstance(handler, Response) else handler
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def finish_request(self, request: Any, client_address: Any) -> None:
        # The handshake is in the thread of the connection: a slow client delays no other.
        connection = request if self._tls is None else self._tls.wrap_socket(request, server_side=True)
        with self._lock:
            self._open.add(connection)
            self.owner.connections += 1
        try:
            super().finish_request(connection, client_address)
        finally:
            with self._lock:
                self._open.discard(connection)
            self.shutdown_request(connection)

    def close_connections(self) -> None:
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    # Not SSLSocket.shutdown, which goes on without TLS.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # Head and body in one write.
    server: _Server

    def _respond(self) -> None:
        sent = Headers(self.headers.items(), encoding="latin-1")
        request = Request(self.command, self.path, sent, self._body(), common_name(self.connection))
        self.server.owner.requests.append(request)
        response = self.server.handler(request)
        if response is HOLD:
            self.server.owner.stopped.wait()
        if response is None or response is HOLD:
            self.close_connection = True
            return
        body, headers = response.body, {}
        if isinstance(body, Iterator):
            headers["Transfer-Encoding"] = "chunked"
        elif not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if isinstance(body, bytes) and response.status != 204:
            headers["Content-Length"] = str(len(body))
        self.send_response_only(response.status)
        for name, value in {**headers, **response.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if isinstance(body, Iterator):
            self.wfile.flush()
            for chunk in body:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        elif self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = _respond

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def log_message(self, format: str, *args: Any) -> None:
        pass
