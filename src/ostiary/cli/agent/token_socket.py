"""A Unix socket on which programs of the same machine ask for the token.

    GET /token      the token, as text; as JSON, with its expiry, for Accept: application/json
    GET /healthz    200 while the token is good, 503 otherwise

The kernel tells which user connects. Only the agent's own user, root, and those that were named may: the mode of the
socket alone would not keep out whoever can write to its folder.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import cast

from ostiary.cli.agent.keeper import TokenHealth, TokenKeeper
from ostiary.core.net.unix_socket import peer_user, remove_stale
from ostiary.errors import ConfigurationError

# How many ask at the same time, and how long one may take.
MOST_CLIENTS = 32
SECONDS = 5.0


class TokenSocket:
    """Serves as long as the ``with`` block lasts."""

    def __init__(
        self, path: str, keeper: TokenKeeper, *, mode: int, users: frozenset[int], say: Callable[[str], None]
    ) -> None:
        self._path, self._mode = path, mode
        self._keeper, self._users, self._say = keeper, users, say
        self._server: _TokenServer | None = None

    def __enter__(self) -> TokenSocket:
        try:
            remove_stale(self._path, owner="agent")
            # Nobody else may connect in the moment before the mode is set.
            before = os.umask(0o177)
            try:
                self._server = _TokenServer(self._path, self._keeper, self._users, self._say)
            finally:
                os.umask(before)
            os.chmod(self._path, self._mode)
        except OSError as error:
            raise ConfigurationError(
                "the socket cannot be opened",
                cause=error.strerror or str(error),
                where=self._path,
                code="agent-socket-unusable",
            ) from None
        threading.Thread(target=self._server.serve_forever, name="token socket", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        with suppress(OSError):
            os.unlink(self._path)


def ask_health(path: str) -> tuple[int, str]:
    """What the agent at this socket says of itself: a status code, and a word. Raises `OSError` if nobody answers."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(path)
        connection.sendall(b"GET /healthz HTTP/1.0\r\nHost: agent\r\n\r\n")
        reply = b""
        while part := connection.recv(4096):
            reply += part
    head, _, body = reply.partition(b"\r\n\r\n")
    words = head.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0, body.decode("ascii", "replace").strip()


class _TokenServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, keeper: TokenKeeper, users: frozenset[int], say: Callable[[str], None]) -> None:
        self.keeper, self.users, self.say = keeper, users, say
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        super().__init__(path, _TokenRequestHandler)

    def verify_request(self, request: object, client_address: object) -> bool:
        uid = peer_user(cast(socket.socket, request))
        if uid in self.users:
            return self._places.acquire(blocking=False)
        self.say(f"a process of the user {uid} was refused at the socket")
        return False

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news, and a traceback might hold the token."""


class _TokenRequestHandler(BaseHTTPRequestHandler):
    timeout = SECONDS
    server: _TokenServer

    def do_GET(self) -> None:
        match self.path:
            case "/token":
                self._token()
            case "/healthz":
                health = self.server.keeper.health
                good = health in (TokenHealth.FRESH, TokenHealth.LATE)
                self._answer(200 if good else 503, "text/plain", f"{health.value}\n")
            case _:
                self._answer(404, "text/plain", "unknown path: /token or /healthz\n")

    def _token(self) -> None:
        keeper = self.server.keeper
        current, health = keeper.current, keeper.health
        if current is None or health is TokenHealth.EXPIRED:
            self._answer(503, "text/plain", "there is no token at the moment\n")
        elif "application/json" in self.headers.get("Accept", ""):
            until = current.expires_at.isoformat(timespec="seconds")
            value = {"token": current.token.reveal(), "expirationTimestamp": until, "user": current.user}
            self._answer(200, "application/json", json.dumps(value) + "\n")
        else:
            self._answer(200, "text/plain", current.token.reveal())

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: who asks and how often is no news."""
