"""An action token: proof that the gateway has allowed one request, for the backend that it redirects the request to.

    gateway -> AllowedAction, signed -> redirect to ORIGIN/path?query&ostiary_action_token=JWT -> is_for -> backend

Pure. It is a JWT of the gateway's issuer with a type of its own and the backend's origin as its audience, so that it is
no access token anywhere, and no other JWT of the issuer is one of these. It says which method and which URL it is for.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import unquote_plus

from ostiary.model import UserInfo

# The query parameter that carries it: a redirect cannot add headers. Audit events never show the value of a parameter
# with such an ending (`wire.audit.redaction`).
PARAMETER = "ostiary_action_token"
# RFC 8725, 3.11: an explicit type, compared before anything is believed.
TYPE = "ostiary-action+jwt"
# What it can be for. Using such a token twice does no more than using it once.
METHODS = ("GET", "HEAD")
# A URL that is longer than this is refused by some servers and proxies.
LONGEST_URL = 7000

_BEGINNING = f"{PARAMETER}=".encode()


@dataclass(frozen=True, slots=True)
class AllowedAction:
    """What was allowed, and to whom.

    `id` is the request's ``Audit-Id`` at the gateway. `url` is the whole URL without the token, of which only the
    digest is told. `credential_id` is the digest of the token that the user presented to the gateway, in hex: whoever
    revokes that one revokes this one as well.
    """

    id: str
    method: str
    url: bytes
    user: UserInfo
    credential_id: str


def is_for(claims: Mapping[str, object], *, method: str, url: bytes) -> bool:
    """Whether verified *claims* are about a request with this *method* and *url*."""
    return method in METHODS and claims.get("method") == method and claims.get("url") == url_digest(url)


def extra_of(claims: Mapping[str, object]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The ``extra`` of the user; raises `ValueError` if the claim is something else."""
    extra = claims.get("extra", {})
    if not isinstance(extra, dict):
        raise ValueError("its extra is not an object")
    for values in extra.values():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ValueError("its extra has something else than lists of texts")
    return tuple((str(key), tuple(values)) for key, values in extra.items())


def url_digest(url: bytes) -> str:
    return urlsafe_b64encode(sha256(url).digest()).decode().rstrip("=")


# --- the parameter ---


def add_parameter(target: bytes, token: str) -> bytes:
    """*target*, path and query, with *token* behind it."""
    return target + (b"&" if b"?" in target else b"?") + _BEGINNING + token.encode()


def split_parameter(target: bytes) -> tuple[bytes, list[bytes]]:
    """*target* as it was before `add_parameter`, and all values of the parameter: more than one is a forgery."""
    path, mark, query = target.partition(b"?")
    if _BEGINNING not in query:
        return target, []
    parts = query.split(b"&")
    rest = b"&".join(part for part in parts if not part.startswith(_BEGINNING))
    values = [part.removeprefix(_BEGINNING) for part in parts if part.startswith(_BEGINNING)]
    # `add_parameter` puts a question mark only where there is none: `/x?` stays what it was.
    had_query = query.startswith(b"&") or bool(rest)
    return (path + mark + rest if had_query else path), values


def names_parameter(query: str) -> bool:
    """Whether *query* has the parameter already, in whichever way a server would read the name."""
    if PARAMETER not in query and "%" not in query:
        return False
    return any(unquote_plus(part.partition("=")[0]).strip() == PARAMETER for part in query.split("&"))
