"""Serve the plugin over TLS, to the gateway only."""

from __future__ import annotations

import argparse
import json
import queue
import ssl
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from examples.api_plugin.builds import Builds, Refusal
from examples.api_plugin.documents import DOCUMENTS, GROUP, VERSION

LARGEST_BODY = 256 * 1024
WATCH_SECONDS = 300.0


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", arguments.port), Handler)
        self.builds = Builds()
        self.gateway_name = arguments.gateway_name
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(arguments.certificate, arguments.key)
        # A client without a certificate of this authority gets no connection, so it cannot impersonate a user.
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.load_verify_locations(arguments.gateway_ca)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore failed handshakes and disconnected clients."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        # Here and not at the listening socket, so that an incomplete handshake blocks only the thread of its client.
        self.request = self.server.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def log_message(self, format: str, *args: object) -> None:
        pass

    # --- authentication and routing ---

    def is_gateway(self) -> bool:
        """Whether the client certificate has the gateway's name. The authority may also sign other certificates."""
        subject = dict(entry[0] for entry in (self.request.getpeercert() or {}).get("subject", ()))
        return bool(subject.get("commonName") == self.server.gateway_name)

    def answer(self) -> None:
        try:
            if not self.is_gateway():
                raise Refusal(403, "Forbidden", "only the gateway may ask")
            self.route()
        except Refusal as refusal:
            self.send_json(
                refusal.code,
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "reason": refusal.reason,
                    "message": refusal.message,
                    "code": refusal.code,
                },
            )

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def route(self) -> None:
        url = urlsplit(self.path)
        if self.command == "GET" and url.path in DOCUMENTS:
            self.send_json(200, DOCUMENTS[url.path])
            return
        match url.path.strip("/").split("/"):
            case ["apis", group, version, "builds"] if (group, version) == (GROUP, VERSION):
                self.collection("", url.query)
            case ["apis", group, version, "namespaces", namespace, "builds"] if (group, version) == (GROUP, VERSION):
                self.collection(namespace, url.query)
            case ["apis", group, version, "namespaces", namespace, "builds", name] if (group, version) == (
                GROUP,
                VERSION,
            ):
                self.one(namespace, name)
            case _:
                raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def collection(self, namespace: str, query: str) -> None:
        builds = self.server.builds
        if self.command == "POST" and namespace:
            # The gateway sets this header, and drops one that the client may have sent.
            user = self.headers.get("X-Remote-User", "")
            self.send_json(201, builds.create(namespace, self.read_json(), user=user))
        elif self.command == "GET" and parse_qs(query).get("watch", ["0"])[0] not in ("0", "false"):
            self.watch(namespace, parse_qs(query).get("resourceVersion", [""])[0])
        elif self.command == "GET":
            self.send_json(200, builds.list(namespace))
        else:
            raise Refusal(405, "MethodNotAllowed", "this cannot be done with builds")

    def one(self, namespace: str, name: str) -> None:
        builds = self.server.builds
        match self.command:
            case "GET":
                self.send_json(200, builds.get(namespace, name))
            case "PUT" | "PATCH":
                self.send_json(200, builds.replace(namespace, name, self.read_json()))
            case "DELETE":
                self.read_body()
                self.send_json(200, builds.delete(namespace, name))
            case _:
                raise Refusal(405, "MethodNotAllowed", "this cannot be done with a build")

    # --- HTTP ---

    def read_body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if length > LARGEST_BODY:
            self.close_connection = True
            raise Refusal(413, "RequestEntityTooLarge", "the build is too large")
        return self.rfile.read(length)

    def read_json(self) -> dict[str, Any]:
        try:
            value = json.loads(self.read_body())
        except ValueError:
            raise Refusal(400, "BadRequest", "the body is not JSON") from None
        if not isinstance(value, dict):
            raise Refusal(400, "BadRequest", "the body is not an object")
        return value

    def send_json(self, code: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def watch(self, namespace: str, since: str) -> None:
        changes = self.server.builds.watch(since)
        try:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                change = changes.get(timeout=WATCH_SECONDS)
                if namespace in ("", change["object"]["metadata"]["namespace"]):
                    line = json.dumps(change).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        except queue.Empty:
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            self.server.builds.unwatch(changes)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.api_plugin", description=__doc__)
    parser.add_argument("--port", type=int, default=9443)
    parser.add_argument("--certificate", required=True, help="the plugin's own certificate (PEM)")
    parser.add_argument("--key", required=True, help="its key")
    parser.add_argument("--gateway-ca", required=True, help="the authority of the gateway's client certificate (PEM)")
    parser.add_argument("--gateway-name", required=True, help="the common name of that certificate")
    with Server(parser.parse_args(argv)) as server:
        print(f"serving {GROUP} on https://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
