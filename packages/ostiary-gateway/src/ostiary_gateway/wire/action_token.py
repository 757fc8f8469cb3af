"""Action tokens: proof for a backend that the gateway has allowed the request that it redirects there. Pure.

    gateway -> AllowedAction, signed -> redirect to ORIGIN/path?query&ostiary_action_token=JWT -> is_for -> backend

An action token is a JWT of the gateway's issuer, with a type of its own and the backend's origin as its audience: it is
not valid as an access token, and no other JWT of the issuer is valid as an action token. It names its method and URL.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import unquote_plus

from ostiary.model import UserInfo

# The query parameter with the token: a redirect cannot add headers. Audit events redact parameters with this suffix
# (`wire.audit_policy`).
PARAMETER = "ostiary_action_token"
# RFC 8725, 3.11: an explicit type, checked before any claim is trusted.
TYPE = "ostiary-action+jwt"
# Idempotent methods only: using a token twice has no further effect.
METHODS = ("GET", "HEAD")
# Some servers and proxies reject longer URLs.
LONGEST_URL = 7000

_BEGINNING = f"{PARAMETER}=".encode()


@dataclass(frozen=True, slots=True)
class AllowedAction:
    """An allowed request and its user.

    `id` is the request's ``Audit-Id`` at the gateway. `url` is the whole URL without the token; the token contains only
    its digest. `credential_id` is the digest, in hex, of the token that the user sent to the gateway: revoking that one
    revokes this one as well.
    """

    id: str
    method: str
    url: bytes
    user: UserInfo
    credential_id: str


def is_for(claims: Mapping[str, object], *, method: str, url: bytes) -> bool:
    """Whether verified *claims* are for a request with this *method* and *url*."""
    return method in METHODS and claims.get("method") == method and claims.get("url") == url_digest(url)


def extra_of(claims: Mapping[str, object]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the ``extra`` of the user; raises `ValueError` if the claim is invalid."""
    extra = claims.get("extra", {})
    if not isinstance(extra, dict):
        raise ValueError("its extra is not an object")
    for values in extra.values():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ValueError("its extra has something else than lists of texts")
    return tuple((str(key), tuple(values)) for key, values in extra.items())


def url_digest(url: bytes) -> str:
    return urlsafe_b64encode(sha256(url).digest()).decode().rstrip("=")


# The query parameter.


def add_parameter(target: bytes, token: str) -> bytes:
    """Append *token* to *target*, a path and query."""
    return target + (b"&" if b"?" in target else b"?") + _BEGINNING + token.encode()


def split_parameter(target: bytes) -> tuple[bytes, list[bytes]]:
    """Return *target* as before `add_parameter`, and all values of the parameter: more than one is a forgery."""
    path, mark, query = target.partition(b"?")
    if _BEGINNING not in query:
        return target, []
    parts = query.split(b"&")
    rest = b"&".join(part for part in parts if not part.startswith(_BEGINNING))
    values = [part.removeprefix(_BEGINNING) for part in parts if part.startswith(_BEGINNING)]
    # `add_parameter` adds a question mark only if there is none: `/x?` remains unchanged.
    had_query = query.startswith(b"&") or bool(rest)
    return (path + mark + rest if had_query else path), values


def names_parameter(query: str) -> bool:
    """Whether *query* has the parameter already, however its name is encoded."""
    if PARAMETER not in query and "%" not in query:
        return False
    return any(unquote_plus(part.partition("=")[0]).strip() == PARAMETER for part in query.split("&"))
