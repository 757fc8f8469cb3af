"""Asks the API of a running gateway, below ``/apis/ostiary.dev/v1``, with the operator's own token.

Called by the commands with ``--server``; `gateway_http` asks.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

from ostiary.cli.gateway_choice import text_of
from ostiary.cli.gateway_http import GatewayHttp
from ostiary.core.text import fits_token_header
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.model import Secret

PREFIX = "/apis/ostiary.dev/v1"
SECONDS = 30.0
# All sessions of a large gateway.
LARGEST_ANSWER = 64 * 1024 * 1024

_HINTS = {
    401: "sign in again: the token in the file is unknown, expired or revoked",
    403: "the policy must let you do this: resources of the API group ostiary.dev",
}


class GatewayRefused(OstiaryError):
    """The answer was no. `status` is the HTTP code."""

    default_code = "gateway-refused"

    def __init__(self, summary: str, *, status: int, **parts: Any) -> None:
        self.status = status
        super().__init__(summary, **parts)


class RemoteGateway:
    def __init__(self, server: str, *, token_file: str, ca_file: str | None = None) -> None:
        authorities_pem = None if ca_file is None else text_of(ca_file, "authorities")
        self._http = GatewayHttp(server, authorities_pem=authorities_pem, seconds=SECONDS, largest=LARGEST_ANSWER)
        self._token = _token(token_file)

    def get(self, *segments: str, **query: str | None) -> Any:
        given = {key: value for key, value in query.items() if value is not None}
        return self._ask("GET", _path(segments) + (f"?{urlencode(given)}" if given else ""))

    def post(self, *segments: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", _path(segments), json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token.reveal()}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        reply = self._http.ask(method, PREFIX + path, body, headers=headers)
        if "kind" not in reply.fields:
            raise self._http.not_understood(f"it answered {reply.status}, and not as a gateway does")
        if reply.status < 300:
            return reply.fields
        raise GatewayRefused(
            f"the gateway answered {reply.status}",
            status=reply.status,
            cause=str(reply.fields.get("message", "it gave no reason")),
            where=self._http.server,
            hint=_HINTS.get(reply.status),
        )


def _path(segments: tuple[str, ...]) -> str:
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


def _token(path: str) -> Secret:
    token = text_of(path, "token").strip()
    if not fits_token_header(token):
        raise ConfigurationError(
            "the file holds no token",
            cause="it is not one line of visible ASCII",
            where=path,
            code="token-file-unreadable",
        )
    return Secret(token)
