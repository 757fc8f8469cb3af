"""Asks the API of a running gateway, below ``/apis/ostiary.dev/v1``, with the operator's own token.

Called by the commands with ``--server``. Small on purpose: one question, one answer, no redirects and no proxy, so
that the token goes to the server that was named and to nobody else.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from ostiary.cli.arguments import UsageError
from ostiary.cli.gateway_choice import text_of
from ostiary.core.text import fits_token_header
from ostiary.core.tls import TlsSettings, build_context
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.model import Secret

PREFIX = "/apis/ostiary.dev/v1"
SECONDS = 30.0
LARGEST_ANSWER = 64 * 1024 * 1024
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class GatewayUnreachable(OstiaryError):
    """There was no answer that could be understood; asking again may help."""

    default_code = "gateway-unreachable"


class GatewayRefused(OstiaryError):
    """The answer was no. `status` is the HTTP code."""

    default_code = "gateway-refused"

    def __init__(self, summary: str, *, status: int, **parts: Any) -> None:
        self.status = status
        super().__init__(summary, **parts)


class RemoteGateway:
    def __init__(self, server: str, *, token_file: str, ca_file: str | None = None) -> None:
        self._server = server
        found = urlsplit(server)
        try:
            host, port = found.hostname, found.port
        except ValueError:
            host = port = None
        if found.scheme not in ("https", "http") or not host or found.username or found.query or found.fragment:
            raise UsageError("--server is no address of a gateway", hint="as in: --server https://gateway.example.com")
        if found.scheme == "http" and host not in LOOPBACK:
            raise UsageError("your token would cross the network in plain text", hint="use https")
        self._host, self._port, self._path = host, port, found.path.rstrip("/") + PREFIX
        self._tls: ssl.SSLContext | None = None
        if found.scheme == "https":
            pem = None if ca_file is None else text_of(ca_file, "authorities")
            self._tls = build_context(TlsSettings(authorities_pem=pem))
        self._token = _token(token_file)

    def get(self, *segments: str, **query: str | None) -> Any:
        given = {key: value for key, value in query.items() if value is not None}
        return self._ask("GET", _path(segments) + (f"?{urlencode(given)}" if given else ""))

    def post(self, *segments: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", _path(segments), json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token.reveal()}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            connection.request(method, self._path + path, body, headers)
            response = connection.getresponse()
            data = response.read(LARGEST_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(_cause(error)) from None
        finally:
            connection.close()
        if len(data) > LARGEST_ANSWER:
            raise self._unreachable("its answer is too large")
        return self._understood(response.status, data)

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=SECONDS)
        return http.client.HTTPSConnection(self._host, self._port, timeout=SECONDS, context=self._tls)

    def _understood(self, status: int, data: bytes) -> Any:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or "kind" not in answer:
            raise self._unreachable(f"it answered {status}, and not as a gateway does", code="gateway-answer-invalid")
        if status < 300:
            return answer
        message = str(answer.get("message", "it gave no reason"))
        hint = None
        if status == 401:
            hint = "sign in again: the token in the file is unknown, expired or revoked"
        elif status == 403:
            hint = "the policy must let you do this: resources of the API group ostiary.dev"
        raise GatewayRefused(
            f"the gateway answered {status}", status=status, cause=message, where=self._server, hint=hint
        )

    def _unreachable(self, cause: str, code: str | None = None) -> GatewayUnreachable:
        return GatewayUnreachable("the gateway cannot be asked", cause=cause, where=self._server, code=code)


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


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return type(error).__name__
