"""A server in a gateway's place that answers backends as a test says: right, late, wrong, or not at all. Plain HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import trustme

from ostiary.model import UserInfo
from ostiary_gateway.sessions import new_token
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, encode_revoked_credentials
from ostiary_gateway.wire.token_introspection import TokenDescription, decode_question, encode_answer
from tests.support.http_server import Handler, HttpServer, Request, Response

FAR = datetime(2999, 1, 1, tzinfo=UTC)


class ScriptedGateway(HttpServer):
    def __init__(self, ca: trustme.CA | None = None) -> None:
        super().__init__(self._respond, tls=ca)
        self.tokens: dict[str, TokenDescription] = {}
        self.revoked = RevokedCredentials("", ())
        # Tokens, each with the address of the client that presented it.
        self.asked_about: list[tuple[str, str]] = []
        self.instead: Handler | None = None
        """What responds in place of the gateway."""
        # A question about a token waits for it, and says before that that it has come.
        self.go_on, self.reached = threading.Event(), threading.Event()
        self.go_on.set()
        self._changed = threading.Condition()

    @contextmanager
    def running(self) -> Iterator[Self]:
        with super().running():
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

    def _respond(self, request: Request) -> Response | None:
        if self.instead is not None:
            return self.instead(request)
        if request.path == "/webhooks/token-introspection":
            token, address = decode_question(request.body)
            self.asked_about.append((token, address))
            answer = encode_answer(self.tokens.get(token))
            self.reached.set()
            self.go_on.wait()
            return Response(body=answer)
        if request.path == "/webhooks/revoked-credentials":
            return Response(body=encode_revoked_credentials(self._list(request.query)))
        return Response(404, {})

    def _list(self, query: Mapping[str, str]) -> RevokedCredentials:
        if "after" in query:
            after, wait = (int(query[name]) for name in ("after", "wait"))
            with self._changed:
                self._changed.wait_for(lambda: self.revoked.head > after, timedelta(seconds=wait).total_seconds())
        return self.revoked


def garbage(request: Request) -> Response:
    return Response(body={"kind": "Secret", "data": "token-of-the-backend"})
