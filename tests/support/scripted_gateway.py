"""A server in a gateway's place that answers backends as a test says: right, late, wrong, or not at all. Plain HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ostiary.core.tokens import new_token
from ostiary.model import UserInfo
from ostiary.wire.ostiary_dev.revoked_credentials import RevokedCredentials, encode_revoked_credentials
from ostiary.wire.ostiary_dev.token_introspection import TokenDescription, decode_question, encode_answer
from tests.support.serving import serving

# What is sent in place of an answer; None closes the connection without one.
Instead = Callable[[str], tuple[int, bytes] | None]
FAR = datetime(2999, 1, 1, tzinfo=UTC)


class ScriptedGateway:
    def __init__(self) -> None:
        self.tokens: dict[str, TokenDescription] = {}
        self.revoked = RevokedCredentials("", ())
        self.asked: list[str] = []
        self.instead: Instead | None = None
        # A question about a token waits for it, and says before that that it has come.
        self.go_on, self.reached = threading.Event(), threading.Event()
        self.go_on.set()
        self._changed = threading.Condition()
        self._http = _QuietServer(("127.0.0.1", 0), _handler_for(self))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[ScriptedGateway]:
        with serving(self._http):
            yield self
            self.go_on.set()
            self.revoke()

    def add(self, username: str = "ann", **changes: Any) -> str:
        """A new token of *username*."""
        token = new_token().reveal()
        description = TokenDescription(UserInfo(username), FAR, sha256(token.encode()).hexdigest(), f"of {username}")
        self.tokens[token] = replace(description, **changes)
        return token

    def revoke(self, **changes: Any) -> None:
        with self._changed:
            self.revoked = replace(self.revoked, head=self.revoked.head + 1, **changes)
            self._changed.notify_all()

    def settings(self, folder: Path, **sections: Any) -> dict[str, Any]:
        """A ``backend.yaml`` for it, where everything is allowed to everybody."""
        (folder / "caller-token").write_text("token-of-the-backend")
        return {
            "apiVersion": "ostiary.dev/v1",
            "kind": "Backend",
            "gateway": {"server": self.url, "tokenFile": "caller-token", **sections.pop("gateway", {})},
            "authorization": {"chain": [{"name": "everything", "type": "allow_all"}]},
            **sections,
        }

    # --- called by the handler ---

    def reply(self, path: str, body: bytes) -> tuple[int, bytes] | None:
        self.asked.append(path)
        if self.instead is not None:
            return self.instead(path)
        parts = urlsplit(path)
        if parts.path == "/webhooks/token-introspection":
            answer = encode_answer(self.tokens.get(decode_question(body)))
            self.reached.set()
            self.go_on.wait()
            return 200, answer
        if parts.path == "/webhooks/revoked-credentials":
            return 200, encode_revoked_credentials(self._list(parse_qs(parts.query)))
        return 404, b"{}"

    def _list(self, query: dict[str, list[str]]) -> RevokedCredentials:
        if "after" in query:
            after, wait = (int(query[name][0]) for name in ("after", "wait"))
            with self._changed:
                self._changed.wait_for(lambda: self.revoked.head > after, timedelta(seconds=wait).total_seconds())
        return self.revoked


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news."""


def _handler_for(gateway: ScriptedGateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            reply = gateway.reply(self.path, body)
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply[0])
            self.send_header("Content-Length", str(len(reply[1])))
            self.end_headers()
            self.wfile.write(reply[1])
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def garbage(path: str) -> tuple[int, bytes]:
    return 200, json.dumps({"kind": "Secret", "data": "token-of-the-backend"}).encode()
