"""An API server in a few lines, over TLS, with tokens that live for five seconds and can be revoked.

POST /login   {"password": ...}  -> {"token": ..., "expires_in": 5}
GET  /api/v1/namespaces/default/pods   with a token that is neither expired nor revoked
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler

import trustme

from examples.server import JsonHandler, TlsServer

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
        self._http = TlsServer(self.authority, _handler(self))
        self.url = self._http.url

    def running(self) -> AbstractContextManager[None]:
        return self._http.running()

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
    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            token = api.login(body.get("password", ""))
            if token is None:
                self.answer(403, {"message": "wrong password"})
            else:
                self.answer(200, {"token": token, "expires_in": api.token_seconds})

        def do_GET(self) -> None:
            if api.admits(self.headers.get("Authorization", "")):
                self.answer(200, PODS)
            else:
                self.answer(401, {"kind": "Status", "code": 401, "message": "Unauthorized"})

    return Handler
