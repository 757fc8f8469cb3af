"""A small API server over TLS that is as strict about credentials as kube-apiserver.

It looks at the token and the client certificate of every request anew, also on connections that are
already open, and remembers everything it was asked.
"""

from __future__ import annotations

import json
import queue
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme
from cryptography import x509

POD_LIST = {
    "kind": "PodList",
    "apiVersion": "v1",
    "metadata": {"resourceVersion": "1"},
    "items": [{"metadata": {"name": f"pod-{n}", "namespace": "default", "uid": f"u{n}"}} for n in range(5)],
}
VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.0", "platform": "linux/amd64"}


@dataclass
class Seen:
    """One request, as it arrived."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    certificate: str | None
    connection: int
    status: int = 0

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass
class Rules:
    """Who is let in. With both sets empty, everybody is. A token of `single_use` is let in once."""

    tokens: set[str] = field(default_factory=set)
    certificates: set[str] = field(default_factory=set)
    single_use: set[str] = field(default_factory=set)

    def admit(self, authorization: str | None, certificate: str | None) -> bool:
        if not self.tokens and not self.certificates and not self.single_use:
            return True
        token = (authorization or "").removeprefix("Bearer ")
        if token in self.single_use:
            self.single_use.remove(token)
            return True
        return token in self.tokens or certificate in self.certificates


class ApiServer:
    """`url`, `seen` and `rules`; `watch_events` feeds every open watch."""

    def __init__(self, ca: trustme.CA, *, hostname: str = "localhost") -> None:
        self.rules = Rules()
        self.seen: list[Seen] = []
        self.connections = 0
        self.barrier: threading.Barrier | None = None
        """When set, every request waits at it before its credential is judged."""
        self.first_event: dict[str, Any] | None = None
        """What every watch sees as soon as it is open."""
        self._watches: list[queue.Queue[dict[str, Any] | None]] = []
        self._watching = threading.Condition()
        self._lock = threading.Lock()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert(hostname, "127.0.0.1").configure_cert(context)
        ca.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        self._http = _Server(("127.0.0.1", 0), _handler_for(self), context)
        self.port = self._http.server_address[1]
        self.url = f"https://{hostname}:{self.port}"

    @contextmanager
    def running(self) -> Iterator[ApiServer]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.end_watches()
            self._http.shutdown()
            self._http.server_close()
            thread.join()

    def remember(self, seen: Seen) -> None:
        with self._lock:
            self.seen.append(seen)

    def statuses(self) -> list[int]:
        return [seen.status for seen in self.seen]

    def next_connection(self) -> int:
        with self._lock:
            self.connections += 1
            return self.connections

    # --- watches ---

    def open_watch(self) -> queue.Queue[dict[str, Any] | None]:
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        if self.first_event is not None:
            events.put(self.first_event)
        with self._watching:
            self._watches.append(events)
            self._watching.notify_all()
        return events

    def wait_for_watches(self, count: int, timeout: float = 30) -> None:
        with self._watching:
            assert self._watching.wait_for(lambda: len(self._watches) >= count, timeout)

    def emit(self, event: dict[str, Any]) -> None:
        with self._watching:
            for events in self._watches:
                events.put(event)

    def end_watches(self) -> None:
        with self._watching:
            for events in self._watches:
                events.put(None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext) -> None:
        super().__init__(address, handler)
        self._tls = tls

    def finish_request(self, request: Any, client_address: Any) -> None:
        # The handshake happens in the connection's own thread, so that one client cannot hold up the rest.
        try:
            wrapped = self._tls.wrap_socket(request, server_side=True)
        except (ssl.SSLError, OSError):
            return
        try:
            super().finish_request(wrapped, client_address)
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            wrapped.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def _common_name(connection: Any) -> str | None:
    der = connection.getpeercert(binary_form=True)
    if not der:
        return None
    names = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value) if names else None


def _handler_for(api: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.number = api.next_connection()
            self.certificate = _common_name(self.connection)

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def handle_any(self) -> None:
            seen = self._read()
            if api.barrier is not None:
                api.barrier.wait(30)
            if not api.rules.admit(seen.header("Authorization"), seen.certificate):
                self._answer(seen, 401, _status(401, "Unauthorized"), {"WWW-Authenticate": 'Bearer realm="test"'})
                return
            self._serve(seen)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def _read(self) -> Seen:
            if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
                body = b"".join(self._chunks())
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen = Seen(self.command, self.path, list(self.headers.items()), body, self.certificate, self.number)
            api.remember(seen)
            return seen

        def _chunks(self) -> Iterator[bytes]:
            while size := int(self.rfile.readline().strip() or b"0", 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

        def _serve(self, seen: Seen) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            if query.get("watch", ["0"])[0] in ("1", "true", "True"):
                self._watch(seen)
            elif parts.path.endswith("/forbidden"):
                self._answer(seen, 403, _status(403, "Forbidden"))
            elif parts.path.endswith("/redirect"):
                self._answer(seen, 307, {}, {"Location": query["to"][0]})
            elif parts.path.endswith("/broken"):
                self._answer(seen, 503, _status(503, "ServiceUnavailable"))
            elif parts.path.endswith("/pods"):
                self._answer(seen, 200, POD_LIST)
            elif parts.path.endswith("/version"):
                self._answer(seen, 200, VERSION)
            else:
                self._answer(seen, 200, {"kind": "Echo", "method": self.command, "length": len(seen.body)})

        def _watch(self, seen: Seen) -> None:
            seen.status = 200
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            events = api.open_watch()
            while (event := events.get()) is not None:
                data = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")

        def _answer(self, seen: Seen, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
            seen.status = status
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _status(code: int, reason: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": reason,
        "code": code,
    }
