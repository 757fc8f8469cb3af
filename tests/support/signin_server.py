"""A small gateway for the command line to sign in at: ``/auth`` as documented, and an API behind its tokens.

It is strict where the real one is: codes and renewal tokens are good once, the PKCE verifier must fit, an access token
lives as long as it says. What it was asked is counted, and its clock may go wrong.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import ssl
import sys
import threading
from base64 import b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import trustme

from tests.support.apiserver import VERSION
from tests.support.serving import serving

BROWSER = """#!{python} -IS
import ssl, sys, urllib.request
with open({log!r}, "a") as log:
    log.write(sys.argv[1] + "\\n")
print("a browser that talks on stdout")
if {comes_back}:
    context = ssl.create_default_context(cafile={authority!r})
    try:
        page = urllib.request.urlopen(sys.argv[1], context=context, timeout=30).read()
    except urllib.error.HTTPError as error:
        page = error.read()
    with open({pages!r}, "ab") as pages:
        pages.write(page)
"""


GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT, ACCESS_TOKEN = (f"urn:ietf:params:oauth:token-type:{kind}" for kind in ("jwt", "access_token"))


class Browser:
    """A program for ``$BROWSER``. With *comes_back* it follows the gateway to wherever it is sent."""

    def __init__(self, folder: Path, ca: trustme.CA, *, comes_back: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._log, self._pages = folder / "browser", folder / "tabs", folder / "pages"
        authority = folder / "authority.pem"
        ca.cert_pem.write_to_path(str(authority))
        self.path.write_text(
            BROWSER.format(
                python=sys.executable,
                log=str(self._log),
                pages=str(self._pages),
                comes_back=comes_back,
                authority=str(authority),
            )
        )
        self.path.chmod(0o755)

    @property
    def tabs(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    @property
    def pages(self) -> str:
        return self._pages.read_text() if self._pages.exists() else ""


@dataclass
class Pending:
    """A code that can be redeemed, or a device code that somebody may approve."""

    challenge: str = ""
    user_code: str = ""
    approved: bool = False
    denied: bool = False


class SigninServer:
    """`url`; `count` of what was asked; settings may be changed at any time."""

    def __init__(self, ca: trustme.CA) -> None:
        self.ca = ca
        self.methods: list[dict[str, str]] = [{"name": "corp", "kind": "redirect"}]
        self.passwords = {"ann": "pässword"}
        self.lifetime, self.session_lifetime = timedelta(minutes=15), timedelta(hours=24)
        self.ahead = timedelta(0)
        self.sends_date = True
        self.refuses_in_browser = False
        self.broken = 0
        """A status that every request to /auth gets, if it is set."""
        self.conflicts: list[Callable[[], object]] = []
        """For each a renewal is told, with a 409, that another one was quicker; called just before."""
        self.count: Counter[str] = Counter()
        self.tokens: dict[str, datetime] = {}
        self.renewals: set[str] = set()
        self.pending: dict[str, Pending] = {}
        self.seen_clients: list[str] = []
        self.everywhere: list[str] = []
        self.exchanges: list[dict[str, str]] = []
        """The form of every token exchange."""
        self.exchange_refusal: tuple[int, dict[str, Any]] | None = None
        """What every token exchange is answered with, if it is set."""
        self.clusters: list[dict[str, str]] = []
        self.incomplete = False
        """Whether about some cluster nobody could be asked."""
        self._lock = threading.Lock()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        self._http = _Server(("127.0.0.1", 0), _handler_for(self), context)
        self.url = f"https://localhost:{self._http.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[SigninServer]:
        with serving(self._http):
            yield self

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def end_sessions(self) -> None:
        self.tokens.clear()
        self.renewals.clear()

    # --- answers: (status, body, headers) ---

    def answer(self, method: str, path: str, query: dict[str, str], form: dict[str, str], authorization: str) -> Any:
        with self._lock:
            self.count[f"{method} {path}"] += 1
            if path.startswith("/auth") and self.broken:
                return self.broken, {"message": "the identity provider is unavailable"}, {}
            match method, path.split("/")[1:]:
                case "GET", ["auth", "methods"]:
                    return 200, {"providers": self.methods, "gateway": self.url}, {}
                case "GET", ["auth", "cli"]:
                    return self._browser(query)
                case "POST", ["auth", "cli", "token"]:
                    return self._redeem(form)
                case "POST", ["auth", "device"]:
                    return self._device(form)
                case "POST", ["auth", "device", "token"]:
                    return self._poll(form)
                case "POST", ["auth", "token"]:
                    return self._exchange(form)
                case "POST", ["auth", "renew"]:
                    return self._renew(form)
                case "POST", ["auth", "logout"]:
                    return self._logout(form)
                case "GET", ["auth", "whoami"]:
                    return self._whoami(authorization)
                case "POST", ["auth", "step-up"]:
                    return _refusal(400, "there is no step-up rule of this name")
                case "GET", ["auth", "upstreams"]:
                    return self._upstreams(authorization)
                case "GET", ["auth", name]:
                    return self._directly(name, authorization)
            return (200, VERSION, {}) if self._live(authorization) else _refusal(401, "Unauthorized")

    def _browser(self, query: dict[str, str]) -> Any:
        back = f"http://127.0.0.1:{int(query['port'])}/callback"
        self.seen_clients.append(query["client"])
        if self.refuses_in_browser:
            return 302, {}, {"Location": f"{back}?{urlencode({'error': 'access_denied', 'state': query['state']})}"}
        code = secrets.token_urlsafe(16)
        self.pending[code] = Pending(challenge=query["challenge"])
        return 302, {}, {"Location": f"{back}?{urlencode({'code': code, 'state': query['state']})}"}

    def _redeem(self, form: dict[str, str]) -> Any:
        found = self.pending.pop(form["code"], None)
        digest = hashlib.sha256(form["verifier"].encode()).digest()
        if found is None or urlsafe_b64encode(digest).rstrip(b"=").decode() != found.challenge:
            return 400, {"error": "invalid_grant"}, {}
        return self._issued("ann")

    def _device(self, form: dict[str, str]) -> Any:
        code = secrets.token_urlsafe(16)
        self.seen_clients.append(form["client"])
        self.pending[code] = Pending(user_code="BCDF-GHJK")
        page = f"{self.url}/auth/device"
        return (
            200,
            {
                "device_code": code,
                "user_code": "BCDF-GHJK",
                "verification_uri": page,
                "verification_uri_complete": f"{page}?code=BCDF-GHJK",
                "interval": 0.01,
                "expires_in": 600,
            },
            {},
        )

    def decide(self, *, approve: bool) -> None:
        """A person approves or denies the one device that waits."""
        with self._lock:
            for found in self.pending.values():
                found.approved, found.denied = approve, not approve

    def _poll(self, form: dict[str, str]) -> Any:
        found = self.pending.get(form["device_code"])
        if found is None:
            return 400, {"error": "expired_token"}, {}
        if found.approved:
            return self._issued("ann")
        return 400, {"error": "access_denied" if found.denied else "authorization_pending"}, {}

    def _exchange(self, form: dict[str, str]) -> Any:
        """RFC 8693. Whether the token is good is not this server's business; that it has the right form is."""
        self.exchanges.append(form)
        if self.exchange_refusal is not None:
            return *self.exchange_refusal, {}
        if form.get("grant_type") != GRANT_TYPE or form.get("subject_token_type") != JWT or not form["subject_token"]:
            return 400, {"error": "invalid_request", "error_description": "this is no token exchange"}, {}
        self.count["exchanged"] += 1
        token = f"ost_{secrets.token_hex(16)}"
        self.tokens[token] = self.now() + self.lifetime
        seconds = int(self.lifetime.total_seconds())
        told = {"access_token": token, "issued_token_type": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": seconds}
        return 200, told | ({"scope": form["scope"]} if "scope" in form else {}), {}

    def _renew(self, form: dict[str, str]) -> Any:
        if self.conflicts:
            self.conflicts.pop(0)()
            code, body, _ = _refusal(409, "this session was refreshed a moment ago: use the new tokens")
            return code, body, {"Retry-After": "0"}
        if form["renewal_token"] not in self.renewals:
            return _refusal(401, "this session has expired or was revoked: sign in again")
        self.renewals.remove(form["renewal_token"])
        return self._issued("ann")

    def _logout(self, form: dict[str, str]) -> Any:
        self.renewals.discard(form["renewal_token"])
        self.everywhere.append(form.get("everywhere", ""))
        return 204, None, {}

    def _whoami(self, authorization: str) -> Any:
        if not self._live(authorization):
            return _refusal(401, "Unauthorized")
        groups = [{"name": "dev", "source": "teams"}, {"name": "system:authenticated", "source": "gateway"}]
        told = {"user": "ann", "groups": groups, "session": "s1", "provider": "corp"}
        return 200, {**told, "since": "2026-01-01T00:00:00Z", "expires_at": "2026-01-02T00:00:00Z"}, {}

    def _upstreams(self, authorization: str) -> Any:
        if not self._live(authorization):
            return _refusal(401, "Unauthorized")
        return 200, {"gateway": self.url, "upstreams": self.clusters, "incomplete": self.incomplete}, {}

    def _directly(self, name: str, authorization: str) -> Any:
        kinds = [method["kind"] for method in self.methods if method["name"] == name]
        if kinds == ["ambient"]:
            return self._issued("ann")
        if kinds != ["password"]:
            return _refusal(404, "page not found")
        if not authorization.startswith("Basic "):
            return _refusal(401, "authentication required")
        user, _, password = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self.passwords.get(user) != password:
            return _refusal(401, "wrong username or password")
        return self._issued(user)

    def _issued(self, user: str) -> Any:
        self.count["issued"] += 1
        token, renewal = f"ost_{secrets.token_hex(16)}", f"osr_{secrets.token_hex(16)}"
        expires_at = self.now() + self.lifetime
        self.tokens[token] = expires_at
        self.renewals.add(renewal)
        told = {
            "token": token,
            "expires_at": _time(expires_at),
            "renewal_token": renewal,
            "session": "s1",
            "session_expires_at": _time(self.now() + self.session_lifetime),
            "user": user,
            "groups": ["dev"],
            "sources": {"dev": "teams"},
        }
        return 200, told, {}

    def _live(self, authorization: str) -> bool:
        expires_at = self.tokens.get(authorization.removeprefix("Bearer "))
        return expires_at is not None and self.now() < expires_at


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext):
        self._context = context
        super().__init__(address, handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        # Here, in the thread of the connection: a client that never shakes hands holds up nobody else.
        try:
            request.settimeout(30)
            with self._context.wrap_socket(request, server_side=True) as secure:
                super().finish_request(secure, client_address)
        except OSError:
            pass


def _handler_for(server: SigninServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            authorization = self.headers.get("Authorization") or ""
            status, said, headers = server.answer(self.command, parts.path, query, form, authorization)
            data = b"" if said is None else json.dumps(said).encode()
            self.send_response_only(status)
            if server.sends_date:
                self.send_header("Date", format_datetime(server.now(), usegmt=True))
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

    return Handler


def _refusal(code: int, message: str) -> Any:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}, {}


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
