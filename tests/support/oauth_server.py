"""What the stand-ins of GitHub and Google share: a HTTPS server that remembers its requests and fails on demand."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import ssl
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import trustme

from ostiary.interfaces.identity import LoginRequest, Redirect


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: dict[str, str]
    form: dict[str, str]
    headers: dict[str, str]

    @property
    def bearer(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")


@dataclass(frozen=True)
class Reply:
    """`body` is sent as JSON; bytes as they are. `hold` answers only when the server ends."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hold: bool = False


@dataclass(frozen=True)
class Code:
    """A code that a person's browser carries; good once."""

    person: str
    client_id: str
    redirect_uri: str
    challenge: str
    scope: str

    def fits(self, form: Mapping[str, str]) -> bool:
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = urlsafe_b64encode(digest).rstrip(b"=").decode()
        return (self.client_id, self.redirect_uri, self.challenge) == (
            form.get("client_id"),
            form.get("redirect_uri"),
            challenge,
        )


class OAuthServer:
    """`failures` maps the beginning of a path to the reply that takes the place of the true one."""

    client_id = "client-1"
    client_secret = "client-secret-canary"

    def __init__(self, ca: trustme.CA) -> None:
        self.asked: list[Asked] = []
        self.failures: dict[str, Reply] = {}
        self.codes: dict[str, Code] = {}
        self.denies = False
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _certificate(ca).configure_cert(context)
        self._http = _Server(("127.0.0.1", 0), _handler_for(self))
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.host = f"localhost:{self._http.server_address[1]}"
        self.url = f"https://{self.host}"

    @contextmanager
    def running(self) -> Iterator[Self]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._http.shutdown()
            self._http.server_close()
            thread.join()

    def paths(self, beginning: str = "") -> list[str]:
        return [asked.path for asked in self.asked if asked.path.startswith(beginning)]

    def answer(self, asked: Asked) -> Reply:
        raise NotImplementedError

    def reply_to(self, asked: Asked) -> Reply:
        with self._lock:
            self.asked.append(asked)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            failure = next((reply for path, reply in self.failures.items() if asked.path.startswith(path)), None)
            if failure is not None and failure.hold:
                self._over.wait()
            return failure or self.answer(asked)
        finally:
            with self._lock:
                self._at_once -= 1

    def send_back(self, asked: Asked, person: str) -> Reply:
        """The page where somebody signs in, with somebody at it who presses the button at once."""
        query = asked.query
        back = {"state": query["state"]} if "state" in query else {}
        if self.denies:
            back |= {"error": "access_denied", "error_description": "The user has denied your application access."}
        else:
            code = secrets.token_hex(10)
            challenge = query.get("code_challenge", "") if query.get("code_challenge_method") == "S256" else ""
            self.codes[code] = Code(
                person, query["client_id"], query["redirect_uri"], challenge, query.get("scope", "")
            )  # fmt: skip
            back["code"] = code
        return Reply(302, headers={"Location": f"{query['redirect_uri']}?{urlencode(back)}"})


async def go(redirect: Redirect, ca: trustme.CA, *, path: str = "/auth/provider") -> LoginRequest:
    """What a browser does with *redirect*: it visits the page, and comes back. The gateway adds what it remembers."""
    back = urlsplit(await asyncio.to_thread(_visit, redirect.url, ca))
    assert back.path.endswith(path)
    return LoginRequest(
        "GET",
        back.path,
        query=tuple(parse_qsl(back.query, keep_blank_values=True)),
        callback_url=back._replace(query="").geturl(),
        remembered=redirect.remember,
    )


@cache
def _certificate(ca: trustme.CA) -> trustme.LeafCert:
    return ca.issue_cert("localhost")


def _visit(url: str, ca: trustme.CA) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(context)
    parts = urlsplit(url)
    with closing(HTTPSConnection(parts.netloc, context=context, timeout=10)) as browser:
        browser.request("GET", parts._replace(scheme="", netloc="").geturl())
        response = browser.getresponse()
        assert response.status == 302, response.read()
        return response.headers["Location"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not trust us, or waits no longer, is no news."""


def _handler_for(server: OAuthServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536

        def do_GET(self) -> None:
            self._serve()

        do_POST = do_GET

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            headers = {key.lower(): value for key, value in self.headers.items()}
            asked = Asked(self.command, parts.path, _first(parts.query), _first(body), headers)
            reply = server.reply_to(asked)
            raw = reply.body if isinstance(reply.body, bytes) else b"" if reply.body is None else _json(reply.body)
            self.send_response(reply.status)
            for key, value in reply.headers.items():
                self.send_header(key, value)
            # Every reply tries it: no client of ours may keep a cookie.
            self.send_header("Set-Cookie", "session=somebody-elses; Path=/")
            if reply.status != 204:
                self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _first(encoded: str) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(encoded, keep_blank_values=True).items()}
