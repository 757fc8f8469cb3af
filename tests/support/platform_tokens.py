"""What platforms give to their jobs and pods: tokens, environments, and GitHub's token endpoint."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

from tests.support.http_server import HttpServer, Request, Response

CANARY = "c4n4ry0signature0c4n4ry"
REQUEST_CANARY = "c4n4ry-request-token"


def unsigned_token(audience: str | list[str], **claims: Any) -> str:
    """A JWT whose signature nobody looks at: what the command line does before a gateway sees it needs none."""
    now = int(time.time())
    content = {"iss": "https://platform.example", "sub": "job-1", "aud": audience, "iat": now, "exp": now + 600}
    return f"{_part({'alg': 'ES256', 'typ': 'JWT'})}.{_part({**content, **claims})}.{CANARY}"


def _part(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


class GitHubActions(HttpServer):
    """GitHub's token endpoint, as its documentation has it: a GET with an audience and the job's request token.

    *sign* makes the token for an audience. `environment` is what a job with ``id-token: write`` sees of it.
    """

    def __init__(self, sign: Callable[[str], str], *, request_token: str = REQUEST_CANARY) -> None:
        super().__init__(self._respond)
        self._sign, self.request_token = sign, request_token
        self.audiences: list[str] = []
        self.refusal: Response | None = None
        self.endpoint = f"{self.url}/id-token?api-version=2.0"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "GITHUB_ACTIONS": "true",
            "CI": "true",
            "ACTIONS_ID_TOKEN_REQUEST_URL": self.endpoint,
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": self.request_token,
        }

    def _respond(self, request: Request) -> Response:
        authorized = request.headers.get("Authorization") == f"bearer {self.request_token}"
        if not authorized or request.query.get("api-version") != "2.0":
            return Response(401, {"message": "unauthorized"})
        audience = request.query.get("audience", "https://github.com/octo-org")
        self.audiences.append(audience)
        token = self._sign(audience)
        return self.refusal or Response(200, {"count": len(token), "value": token})
