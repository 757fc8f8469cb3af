"""An API server in a few lines: over TLS, with tokens that live five seconds and can be revoked.

POST /login   {"password": ...}  -> {"token": ..., "expires_in": 5}
GET  /api/v1/namespaces/default/pods   with a token that is neither expired nor revoked
"""

from __future__ import annotations

import json
import secrets
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import trustme

TOKEN_SECONDS = 5.0
PODS = {"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": f"web-{n}"}} for n in range(3)]}


class ApiServer:
    def __init__(self, *, password: str, token_seconds: float = TOKEN_SECONDS) -> None:
        self.token_seconds = token_seconds
        self._password = password
        self._expiry: dict[str, float] = {}
        self.logins = 0
        self.refusals = 0
        self.authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("localhost").configure_cert(context)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.url = f"https://localhost:{self._http.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[ApiServer]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()

    def login(self, password: str) -> str | None:
        if not secrets.compare_digest(password, self._password):
            return None
        self.logins += 1
        token = secrets.token_urlsafe(24)
        self._expiry[token] = time.monotonic() + self.token_seconds
        return token

    def admits(self, authorization: str) -> bool:
        admitted = time.monotonic() < self._expiry.get(authorization.removeprefix("Bearer "), 0)
        self.refusals += not admitted
        return admitted

    def revoke_everything(self) -> None:
        self._expiry.clear()


def _handler(api: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            token = api.login(body.get("password", ""))
            if token is None:
                self._answer(403, {"message": "wrong password"})
            else:
                self._answer(200, {"token": token, "expires_in": api.token_seconds})

        def do_GET(self) -> None:
            if api.admits(self.headers.get("Authorization", "")):
                self._answer(200, PODS)
            else:
                self._answer(401, {"kind": "Status", "code": 401, "message": "Unauthorized"})

        def _answer(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
