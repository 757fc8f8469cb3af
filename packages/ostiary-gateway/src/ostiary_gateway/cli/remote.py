"""Client of the operator API of a running gateway, below ``/apis/ostiary.dev/v1``, for commands with ``--server``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

from ostiary.cli.arguments import UsageError
from ostiary.cli.cached_token import DEFAULT_ACCOUNT
from ostiary.cli.files import token_text
from ostiary.cli.gateway_http import GatewayHttp, checked_address
from ostiary.cli.login.login_lock import login_command, session_token
from ostiary.cli.login.options import chosen_authorities
from ostiary.cli.login.sessions import GatewayAccount
from ostiary.core.text import fits_token_header
from ostiary.errors import ConfigurationError, CredentialError, OstiaryError
from ostiary.model import Secret

PREFIX = "/apis/ostiary.dev/v1"
SECONDS = 30.0
# Enough for all sessions of a large gateway.
LARGEST_ANSWER = 64 * 1024 * 1024

# A JSON object of the gateway's API.
ApiObject: TypeAlias = Mapping[str, Any]

_SUMMARIES = {401: "token not accepted", 403: "permission denied", 404: "not found", 409: "conflict"}
_FORBIDDEN = "the policy must allow you to do this: resources of the API group ostiary.dev"
# The start of a message that denies by policy. Another 403, such as for a disabled feature, has its own reason.
_BY_POLICY = "forbidden: User "


class GatewayRefused(OstiaryError):
    """The gateway responded with an error. `status` is the HTTP code."""

    default_code = "gateway-refused"

    def __init__(self, summary: str, *, status: int, cause: str, where: str, hint: str | None) -> None:
        self.status = status
        super().__init__(summary, cause=cause, where=where, hint=hint)


class RemoteGateway:
    """A running gateway. *unknown_token* is the hint for a token that the gateway does not accept."""

    def __init__(self, server: str, token: Secret, *, authorities_pem: str | None, unknown_token: str) -> None:
        self._http = GatewayHttp(server, authorities_pem=authorities_pem, seconds=SECONDS, largest=LARGEST_ANSWER)
        self._token = token
        self._unknown_token = unknown_token

    def get(self, *segments: str, **query: str | None) -> ApiObject:
        return self._ask("GET", _path(segments, **query))

    def delete(self, *segments: str, **query: str | None) -> ApiObject:
        return self._ask("DELETE", _path(segments, **query))

    def post(self, *segments: str, body: Mapping[str, object]) -> ApiObject:
        return self._ask("POST", _path(segments), json.dumps(body).encode())

    def patch(self, *segments: str, body: Mapping[str, object]) -> ApiObject:
        return self._ask("PATCH", _path(segments), json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> ApiObject:
        headers = {"Authorization": f"Bearer {self._token.reveal()}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        reply = self._http.ask(method, PREFIX + path, body, headers=headers)
        if "kind" not in reply.fields:
            raise self._http.not_understood(f"it answered {reply.status}, without the response of a gateway")
        if reply.status < 300:
            return reply.fields
        cause = str(reply.fields.get("message", "it gave no reason"))
        raise GatewayRefused(
            f"{_SUMMARIES.get(reply.status, 'request refused')}: the gateway answered {reply.status}",
            status=reply.status,
            cause=cause,
            where=self._http.server,
            hint=self._hint(reply.status, cause),
        )

    def _hint(self, status: int, cause: str) -> str | None:
        if status == 401:
            return self._unknown_token
        return _FORBIDDEN if status == 403 and _BY_POLICY in cause else None


def chosen_gateway(arguments: argparse.Namespace) -> RemoteGateway:
    """Return the gateway at ``--server``, with the token of ``--token-file`` or of the user's session there."""
    if arguments.account == "":
        raise UsageError("--account is empty")
    account = GatewayAccount(checked_address(arguments.server), arguments.account or DEFAULT_ACCOUNT)
    authorities_pem = chosen_authorities(arguments, account)
    if arguments.token_file is not None:
        unknown = "sign in again: the token in the file is unknown, expired or revoked"
        token = _token(arguments.token_file)
    else:
        unknown = f"sign in again: {' '.join(login_command(account))}"
        token, authorities_pem = _token_of_session(account, authorities_pem)
    return RemoteGateway(account.server, token, authorities_pem=authorities_pem, unknown_token=unknown)


def _token_of_session(account: GatewayAccount, authorities_pem: str | None) -> tuple[Secret, str | None]:
    try:
        return session_token(account, authorities_pem)
    except CredentialError as error:
        error.hint = f"{error.hint}, or name a file that holds your token: --token-file"
        raise


def _path(segments: tuple[str, ...], **query: str | None) -> str:
    parameters = {key: value for key, value in query.items() if value is not None}
    return "".join(f"/{quote(segment, safe='')}" for segment in segments) + (
        f"?{urlencode(parameters)}" if parameters else ""
    )


def _token(path: str) -> Secret:
    token = token_text(path).strip()
    if not fits_token_header(token):
        raise ConfigurationError(
            "the file holds no token",
            cause="it is not one line of visible ASCII",
            where=path,
            code="token-file-unreadable",
        )
    return Secret(token)
