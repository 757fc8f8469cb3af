"""What the fakes of GitHub, Google and OIDC issuers share: an HTTPS server that issues codes and fails on demand."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import ssl
import threading
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from http.client import HTTPSConnection
from urllib.parse import parse_qsl, urlencode, urlsplit

import trustme

from ostiary_gateway.interfaces.identity import LoginRequest, Redirect
from tests.support.http_server import HOLD, HttpServer, Request, Response


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


class OAuthServer(HttpServer):
    """`failures` maps the beginning of a path to the response that takes the place of the true one."""

    client_id = "client-1"
    client_secret = "client-secret-canary"

    def __init__(self, ca: trustme.CA) -> None:
        super().__init__(self._respond, tls=ca)
        self.host = f"localhost:{self.port}"
        self.failures: dict[str, Response] = {}
        self.codes: dict[str, Code] = {}
        self.denies = False
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()

    def paths(self, beginning: str = "") -> list[str]:
        return [request.path for request in self.requests if request.path.startswith(beginning)]

    def answer(self, request: Request) -> Response:
        raise NotImplementedError

    def _respond(self, request: Request) -> Response:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            failure = next((failure for path, failure in self.failures.items() if request.path.startswith(path)), None)
            response: Response = failure or self.answer(request)
        finally:
            with self._lock:
                self._at_once -= 1
        if response is HOLD:
            return HOLD
        # Every response tries it: no client of ours may keep a cookie.
        return replace(response, headers={**response.headers, "Set-Cookie": "session=somebody-elses; Path=/"})

    def send_back(self, query: Mapping[str, str], person: str) -> Response:
        """The page where somebody signs in, with somebody at it who presses the button at once."""
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
        return Response(302, headers={"Location": f"{query['redirect_uri']}?{urlencode(back)}"})


async def go(redirect: Redirect, ca: trustme.CA, *, path: str = "/provider") -> LoginRequest:
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


def _visit(url: str, ca: trustme.CA) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(context)
    parts = urlsplit(url)
    with closing(HTTPSConnection(parts.netloc, context=context, timeout=30)) as browser:
        browser.request("GET", parts._replace(scheme="", netloc="").geturl())
        response = browser.getresponse()
        assert response.status == 302, response.read()
        return response.headers["Location"]
