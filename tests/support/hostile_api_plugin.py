"""API plugins that do not keep to what was agreed: each is a server of its own, with the right certificate."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.api_plugin import PluginFiles


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behave: Callable[[Handler], None]

    def do_GET(self) -> None:
        type(self).behave(self)

    def send(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def resource_list(group: str, **more: object) -> bytes:
    """A list of one resource, *things*."""
    resource = {
        "name": "things",
        "singularName": "thing",
        "namespaced": True,
        "kind": "Thing",
        "verbs": ["get", "list"],
    }
    return json.dumps(
        {"kind": "APIResourceList", "groupVersion": f"{group}/v1", "resources": [resource], **more}
    ).encode()


def giant(handler: Handler) -> None:
    """Discovery without end."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    chunk = b" " * 65536
    for _ in range(1024):
        handler.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))


def garbage(handler: Handler) -> None:
    handler.send(200, b'{"kind": "APIResourceList", "resources": [{"name": "../../secrets"}]}')


def nested(handler: Handler) -> None:
    handler.send(200, b"[" * 100_000)


def of_another_group(handler: Handler) -> None:
    handler.send(200, resource_list("apps"))


def redirecting(handler: Handler) -> None:
    """Well behaved, until somebody asks for a resource."""
    path = handler.path.partition("?")[0]
    if path.count("/") <= 3:
        handler.send(200, resource_list("redirecting.example.com"))
    else:
        handler.send(302, b"", Location="https://localhost:1/steal")


def hanging(released: threading.Event) -> Callable[[Handler], None]:
    def hang(handler: Handler) -> None:
        released.wait(60)
        handler.close_connection = True

    return hang


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """The gateway hangs up on it, which is what is tested."""


@contextmanager
def hostile_plugin(files: PluginFiles, behave: Callable[[Handler], None]) -> Iterator[str]:
    """Its URL."""
    folder = files.site.folder
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "builds.pem", folder / "builds.key")
    context.load_verify_locations(folder / "gateway-client-ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server = _Server(("127.0.0.1", 0), type("Behaving", (Handler,), {"behave": staticmethod(behave)}))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
