"""TokenIntrospection (``ostiary.dev/v1``): what a token attests, for backends that check tokens themselves. Pure.

    backend -> query -> POST /webhooks/token-introspection -> encode_answer -> decode_answer -> backend

A kind of its own, instead of TokenReview or RFC 7662: the response contains the restrictions of a scoped token, and a
client that ignores that field would grant it all rights of its owner. Errors never quote what could not be parsed: it
may be the token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

from ostiary.model import UserInfo

KIND = "TokenIntrospection"
API_VERSION = "ostiary.dev/v1"
PATH = "/webhooks/token-introspection"
# Far more than the longest token and the rest of a request.
LARGEST_QUESTION = 16 * 1024


@dataclass(frozen=True, slots=True)
class TokenDescription:
    """The user of a token, until when the result may be cached, and everything by which a revocation can identify it.

    `credential_id` is the digest of the token, in hex; `session` is what a JWT calls its session (the claim ``sid``).
    `sequence` and `began_at` (seconds) say when the session began. `issued_at` is set for JWTs only. `delegation`
    restricts a scoped token (`ostiary.core.scopes`).
    """

    user: UserInfo
    expires_at: datetime
    credential_id: str
    session: str
    sequence: int = 0
    began_at: int = 0
    issued_at: int | None = None
    delegation: str = ""


# Requests.


def question(token: str, client_address: str = "") -> dict[str, Any]:
    """Build a request about *token*, sent by a client at *client_address*; empty if that is unknown."""
    spec = {"token": token} | ({"clientAddress": client_address} if client_address else {})
    return {"apiVersion": API_VERSION, "kind": KIND, "spec": spec}


def decode_question(data: bytes) -> tuple[str, str]:
    """Return the token in a request, and the address of the client that sent it; empty if that is unknown.

    Raises `ValueError`, whose message may be shown to the client.
    """
    document = _object(data) if len(data) <= LARGEST_QUESTION else None
    if document is None:
        raise ValueError("it is not a JSON object, or it is too large")
    _check_kind(document)
    spec = document.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("token"), str):
        raise ValueError("spec.token is missing")
    return spec["token"], _address(spec.get("clientAddress"))


def _address(text: object) -> str:
    """Return an IP address; empty for anything else, as for a client at a Unix socket."""
    if not isinstance(text, str):
        return ""
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


# Responses.


def encode_answer(token: TokenDescription | None) -> bytes:
    """Encode the response about *token*; None if it authenticates no user, for whatever reason."""
    status: dict[str, Any] = {"authenticated": token is not None}
    if token is not None:
        user = token.user
        status |= {
            "user": {
                "username": user.username,
                "uid": user.uid,
                "groups": list(user.groups),
                "extra": {key: list(values) for key, values in user.extra},
            },
            "expiresAt": token.expires_at.timestamp(),
            "credentialID": token.credential_id,
            "session": token.session,
            "sequence": token.sequence,
            "beganAt": token.began_at,
            "delegation": token.delegation,
        }
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "status": status}).encode()


def decode_answer(fields: Mapping[str, Any]) -> TokenDescription | None:
    """Decode a response; raises `ValueError` for anything else: a partial response must not authenticate."""
    _check_kind(fields)
    status = fields.get("status")
    if not isinstance(status, dict) or not isinstance(status.get("authenticated"), bool):
        raise ValueError("it has no status")
    if not status["authenticated"]:
        return None
    return TokenDescription(
        user=_user(status.get("user")),
        expires_at=_time(status.get("expiresAt")),
        credential_id=_text(status, "credentialID", least=1),
        session=_text(status, "session", least=1),
        sequence=_number(status, "sequence"),
        began_at=_number(status, "beganAt"),
        # Required: without it the restrictions of the token would be unknown.
        delegation=_text(status, "delegation"),
    )


def _user(fields: object) -> UserInfo:
    if not isinstance(fields, dict):
        raise ValueError("it names no user")
    groups, extra = fields.get("groups"), fields.get("extra")
    if not isinstance(extra, dict) or not _is_texts(groups) or not all(map(_is_texts, extra.values())):
        raise ValueError("its user cannot be read")
    return UserInfo(
        _text(fields, "username", least=1),
        _text(fields, "uid"),
        tuple(groups or ()),
        tuple(sorted((key, tuple(values)) for key, values in extra.items())),
    )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _time(value: object) -> datetime:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("expiresAt is not a time")
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError("expiresAt is not a time") from None


def _text(fields: Mapping[str, Any], key: str, *, least: int = 0) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or len(value) < least:
        raise ValueError(f"{key} is not a text")
    return value


def _number(fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{key} is not a number")
    return value


def _check_kind(fields: Mapping[str, Any]) -> None:
    if (fields.get("apiVersion"), fields.get("kind")) != (API_VERSION, KIND):
        raise ValueError(f"it is not a {KIND} of {API_VERSION}")


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
