"""What platforms give to their jobs and pods: tokens, environments, and GitHub's token endpoint."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.serving import serving

CANARY = "c4n4ry0signature0c4n4ry"
REQUEST_CANARY = "c4n4ry-request-token"


def unsigned_token(audience: str | list[str], **claims: Any) -> str:
    """A JWT whose signature nobody looks at: what the command line does before a gateway sees it needs none."""
    now = int(time.time())
    content = {"iss": "https://platform.example", "sub": "job-1", "aud": audience, "iat": now, "exp": now + 600}
    return f"{_part({'alg': 'ES256', 'typ': 'JWT'})}.{_part({**content, **claims})}.{CANARY}"


def _part(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


class GitHubActions:
    """GitHub's token endpoint, as its documentation has it: a GET with an audience and the job's request token.

    *sign* makes the token for an audience. `environment` is what a job with ``id-token: write`` sees of it.
    """

    def __init__(self, sign: Callable[[str], str], *, request_token: str = REQUEST_CANARY) -> None:
        self._sign, self.request_token = sign, request_token
        self.audiences: list[str] = []
        self.refusal: tuple[int, bytes] | None = None
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/id-token?api-version=2.0"

    @contextmanager
    def running(self) -> Iterator[GitHubActions]:
        with serving(self._http):
            yield self

    @property
    def environment(self) -> dict[str, str]:
        return {
            "GITHUB_ACTIONS": "true",
            "CI": "true",
            "ACTIONS_ID_TOKEN_REQUEST_URL": self.url,
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": self.request_token,
        }

    def _answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        query = parse_qs(urlsplit(path).query)
        if authorization != f"bearer {self.request_token}" or query.get("api-version") != ["2.0"]:
            return 401, b'{"message": "unauthorized"}'
        (audience,) = query.get("audience", ["https://github.com/octo-org"])
        self.audiences.append(audience)
        token = self._sign(audience)
        return self.refusal or (200, json.dumps({"count": len(token), "value": token}).encode())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = endpoint._answer(self.path, self.headers.get("Authorization") or "")
                self.send_response_only(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        return Handler
