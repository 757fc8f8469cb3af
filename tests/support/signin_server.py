"""A small gateway for the command line to sign in at: ``/auth`` as documented, and an API behind its tokens.

It is strict where the real one is: codes and renewal tokens are good once, the PKCE verifier must fit, an access token
lives as long as it says. What it was asked is counted, and its clock may go wrong.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
import threading
from base64 import b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import urlencode

import trustme

from tests.support.apiserver import VERSION
from tests.support.http_server import HttpServer, Request, Response

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


class SigninServer(HttpServer):
    """`url`; `count` of what was asked; settings may be changed at any time."""

    def __init__(self, ca: trustme.CA) -> None:
        super().__init__(self._respond, tls=ca)
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
        self.exchange_refusal: Response | None = None
        """What every token exchange is answered with, if it is set."""
        self.clusters: list[dict[str, str]] = []
        self.incomplete = False
        """Whether about some cluster nobody could be asked."""
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def end_sessions(self) -> None:
        self.tokens.clear()
        self.renewals.clear()

    def _respond(self, request: Request) -> Response:
        response = self._answer(request, request.headers.get("Authorization", ""))
        if not self.sends_date:
            return response
        return replace(response, headers={"Date": format_datetime(self.now(), usegmt=True), **response.headers})

    def _answer(self, request: Request, authorization: str) -> Response:
        method, path, query, form = request.method, request.path, request.query, request.form
        with self._lock:
            self.count[f"{method} {path}"] += 1
            if path.startswith("/auth") and self.broken:
                return Response(self.broken, {"message": "the identity provider is unavailable"})
            match method, path.split("/")[1:]:
                case "GET", ["auth", "methods"]:
                    return Response(200, {"providers": self.methods, "gateway": self.url})
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
            return Response(200, VERSION) if self._live(authorization) else _refusal(401, "Unauthorized")

    def _browser(self, query: Mapping[str, str]) -> Response:
        back = f"http://127.0.0.1:{int(query['port'])}/callback"
        self.seen_clients.append(query["client"])
        result = {"state": query["state"]}
        if self.refuses_in_browser:
            result["error"] = "access_denied"
        else:
            result["code"] = secrets.token_urlsafe(16)
            self.pending[result["code"]] = Pending(challenge=query["challenge"])
        return Response(302, headers={"Location": f"{back}?{urlencode(result)}"})

    def _redeem(self, form: Mapping[str, str]) -> Response:
        found = self.pending.pop(form["code"], None)
        digest = hashlib.sha256(form["verifier"].encode()).digest()
        if found is None or urlsafe_b64encode(digest).rstrip(b"=").decode() != found.challenge:
            return Response(400, {"error": "invalid_grant"})
        return self._issued("ann")

    def _device(self, form: Mapping[str, str]) -> Response:
        code = secrets.token_urlsafe(16)
        self.seen_clients.append(form["client"])
        self.pending[code] = Pending(user_code="BCDF-GHJK")
        page = f"{self.url}/auth/device"
        return Response(
            200,
            {
                "device_code": code,
                "user_code": "BCDF-GHJK",
                "verification_uri": page,
                "verification_uri_complete": f"{page}?code=BCDF-GHJK",
                "interval": 0.01,
                "expires_in": 600,
            },
        )

    def decide(self, *, approve: bool) -> None:
        """A person approves or denies the one device that waits."""
        with self._lock:
            for found in self.pending.values():
                found.approved, found.denied = approve, not approve

    def _poll(self, form: Mapping[str, str]) -> Response:
        found = self.pending.get(form["device_code"])
        if found is None:
            return Response(400, {"error": "expired_token"})
        if found.approved:
            return self._issued("ann")
        return Response(400, {"error": "access_denied" if found.denied else "authorization_pending"})

    def _exchange(self, form: Mapping[str, str]) -> Response:
        """RFC 8693. Whether the token is good is not this server's business; that it has the right form is."""
        self.exchanges.append(dict(form))
        if self.exchange_refusal is not None:
            return self.exchange_refusal
        if form.get("grant_type") != GRANT_TYPE or form.get("subject_token_type") != JWT or not form["subject_token"]:
            return Response(400, {"error": "invalid_request", "error_description": "this is no token exchange"})
        self.count["exchanged"] += 1
        token = f"ost_{secrets.token_hex(16)}"
        self.tokens[token] = self.now() + self.lifetime
        seconds = int(self.lifetime.total_seconds())
        told = {"access_token": token, "issued_token_type": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": seconds}
        return Response(200, told | ({"scope": form["scope"]} if "scope" in form else {}))

    def _renew(self, form: Mapping[str, str]) -> Response:
        if self.conflicts:
            self.conflicts.pop(0)()
            refusal = _refusal(409, "this session was refreshed a moment ago: use the new tokens")
            return replace(refusal, headers={"Retry-After": "0"})
        if form["renewal_token"] not in self.renewals:
            return _refusal(401, "this session has expired or was revoked: sign in again")
        self.renewals.remove(form["renewal_token"])
        return self._issued("ann")

    def _logout(self, form: Mapping[str, str]) -> Response:
        self.renewals.discard(form["renewal_token"])
        self.everywhere.append(form.get("everywhere", ""))
        return Response(204)

    def _whoami(self, authorization: str) -> Response:
        if not self._live(authorization):
            return _refusal(401, "Unauthorized")
        groups = [{"name": "dev", "source": "teams"}, {"name": "system:authenticated", "source": "gateway"}]
        told = {"user": "ann", "groups": groups, "session": "s1", "provider": "corp"}
        return Response(200, {**told, "since": "2026-01-01T00:00:00Z", "expires_at": "2026-01-02T00:00:00Z"})

    def _upstreams(self, authorization: str) -> Response:
        if not self._live(authorization):
            return _refusal(401, "Unauthorized")
        return Response(200, {"gateway": self.url, "upstreams": self.clusters, "incomplete": self.incomplete})

    def _directly(self, name: str, authorization: str) -> Response:
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

    def _issued(self, user: str) -> Response:
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
        return Response(200, told)

    def _live(self, authorization: str) -> bool:
        expires_at = self.tokens.get(authorization.removeprefix("Bearer "))
        return expires_at is not None and self.now() < expires_at


def _refusal(code: int, message: str) -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return Response(code, status)


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
