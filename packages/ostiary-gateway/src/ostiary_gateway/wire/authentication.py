"""TokenReview (``authentication.k8s.io``), and a user as Kubernetes writes one. Pure.

Typed decoding is the schema check. Errors never quote what could not be parsed: it may be the token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from ostiary.model import UserInfo
from ostiary_gateway.wire.authorization import MAX_BYTES, ReviewError

GROUP = "authentication.k8s.io"
V1, V1BETA1 = (f"{GROUP}/{version}" for version in ("v1", "v1beta1"))
TOKEN_VERSIONS = frozenset((V1, V1BETA1))
TOKEN_REVIEW = "TokenReview"  # noqa: S105
# Kubernetes writes this into its audit events, so a request there can be traced to its session.
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"


@dataclass(frozen=True, slots=True)
class TokenReview:
    """A token to authenticate, and its intended audiences; empty if none were given."""

    api_version: str
    token: str = field(repr=False)
    audiences: tuple[str, ...] = ()


# Shapes.


class _TokenWire(msgspec.Struct, rename="camel", omit_defaults=True):
    pass


class _TokenSpec(_TokenWire):
    token: str = ""
    audiences: list[str] | None = None


class _TokenReviewShape(_TokenWire):
    kind: str
    api_version: str
    spec: _TokenSpec


class _UserShape(_TokenWire):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _TokenStatus(_TokenWire):
    authenticated: bool
    user: _UserShape | None = None
    audiences: tuple[str, ...] = ()
    error: str = ""


class _TokenAnswer(_TokenWire):
    kind: str
    api_version: str
    metadata: dict[str, str]
    status: _TokenStatus


# Created once: creating a decoder while another thread does the same crashes msgspec 0.22.
_TOKEN_DECODER = msgspec.json.Decoder(_TokenReviewShape)
_encode = msgspec.json.Encoder().encode


# TokenReview.


def decode_token_review(data: bytes) -> TokenReview:
    """Decode a review; raises `ReviewError`, whose message may be shown to the client."""
    review: _TokenReviewShape = _decode(_TOKEN_DECODER, data)
    _check(review.kind, TOKEN_REVIEW, review.api_version, TOKEN_VERSIONS)
    return TokenReview(review.api_version, review.spec.token, tuple(review.spec.audiences or ()))


def encode_authenticated(
    api_version: str, user: UserInfo, *, credential_id: str = "", audiences: tuple[str, ...] = ()
) -> bytes:
    """Encode that the token is this user's and valid for *audiences*; if empty, for none in particular."""
    status = _TokenStatus(True, _user(user, credential_id), audiences)
    return _encode(_TokenAnswer(TOKEN_REVIEW, api_version, {}, status))


def encode_unauthenticated(api_version: str, error: str) -> bytes:
    return _encode(_TokenAnswer(TOKEN_REVIEW, api_version, {}, _TokenStatus(False, error=error)))


# Users.


def user_fields(user: UserInfo, credential_id: str = "") -> dict[str, Any]:
    """Return a user as plain values, without empty ones."""
    return dict(msgspec.to_builtins(_user(user, credential_id)))


# Helpers.


def _decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise ReviewError(f"the review is larger than {MAX_BYTES} bytes")
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        # Its message contains the path and the types, and never the value.
        raise ReviewError(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ReviewError("it is not JSON") from None


def _check(kind: str, expected: str, api_version: str, versions: frozenset[str]) -> None:
    if kind != expected:
        raise ReviewError(f"kind must be {expected}")
    if api_version not in versions:
        raise ReviewError(f"apiVersion must be {' or '.join(sorted(versions))}")


def _user(user: UserInfo, credential_id: str = "") -> _UserShape:
    extra = dict(user.extra)
    if credential_id:
        extra[CREDENTIAL_ID] = (credential_id,)
    return _UserShape(user.username, user.uid, user.groups, extra)
