"""A Kubernetes-like API in a few lines, over TLS. It trusts only requests with the gateway's token.

GET /api/v1/namespaces/NAMESPACE/pods              the pods
GET /api/v1/namespaces/NAMESPACE/pods?watch=true   an event for each pod, and then one for each call of `add_pod`
GET /api/v1/namespaces/NAMESPACE/pods/NAME         one of them, or a 404
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

from examples.server import JsonHandler, TlsServer


class SampleApi:
    """The API. `seen` lists the user and path of each request, as sent by the gateway."""

    def __init__(self, authority: trustme.CA) -> None:
        self.token = secrets.token_urlsafe(24)
        self.seen: list[tuple[str, str]] = []
        self._pods = ["web-0", "web-1"]
        self._changed = threading.Condition()
        self._stopping = False
        self._http = TlsServer(authority, _handler(self))
        self.url = self._http.url

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._http.running():
            try:
                yield
            finally:
                with self._changed:
                    self._stopping = True
                    self._changed.notify_all()

    @property
    def pods(self) -> list[str]:
        return list(self._pods)

    def add_pod(self, name: str) -> None:
        with self._changed:
            self._pods.append(name)
            self._changed.notify_all()

    def events(self) -> Iterator[str]:
        """Yield the name of each pod, and wait for the next one until the API stops."""
        told = 0
        while True:
            with self._changed:
                while len(self._pods) == told and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
            yield self._pods[told]
            told += 1


def _handler(api: SampleApi) -> type[BaseHTTPRequestHandler]:
    class Handler(JsonHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != f"Bearer {api.token}":
                self.answer(401, {"kind": "Status", "code": 401, "message": "Unauthorized"})
                return
            api.seen.append((self.headers["Impersonate-User"], self.path))
            address = urlsplit(self.path)
            _, _, name = address.path.partition("/pods/")
            if parse_qs(address.query).get("watch") == ["true"]:
                self._stream()
            elif not name:
                self.answer(200, {"kind": "PodList", "apiVersion": "v1", "items": [_pod(pod) for pod in api.pods]})
            elif name in api.pods:
                self.answer(200, _pod(name))
            else:
                self.answer(404, {"kind": "Status", "code": 404, "message": f'pods "{name}" not found'})

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            # The client may have disconnected by the next event.
            with suppress(OSError):
                for name in api.events():
                    line = json.dumps({"type": "ADDED", "object": _pod(name)}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    return Handler


def _pod(name: str) -> dict[str, Any]:
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}}
