"""The cookie of a web application: which name it has, and the token in a request's cookies. Pure.

    __Host-ostiary-app-<upstream>=<token>          or  <token>.<keeping secret>

The sign-in routes set it, and the engine reads it; no upstream gets it (`http1.headers.OUR_COOKIES`). The keeping
secret opens what the identity provider keeps for the session, so that its user can be checked again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostiary.core.tokens import APPLICATION_PREFIX, application_digest, well_formed
from ostiary.gateway.http1.headers import Headers
from ostiary.model import Secret

# A derived key in base64: see `core.tokens.keeping_secret`.
_KEEPING_LENGTH = 44


@dataclass(frozen=True, slots=True)
class PresentedCookie:
    """A token that a browser presents to one application. `digest` is what the store knows it by."""

    digest: bytes
    token: Secret
    keeping: Secret | None = None


def cookie_name(application: str, *, secure: bool) -> str:
    return f"{'__Host-' if secure else ''}ostiary-app-{application}"


def cookie_value(token: Secret, keeping: Secret | None) -> str:
    return token.reveal() if keeping is None else f"{token.reveal()}.{keeping.reveal()}"


def presented_cookie(headers: Headers, application: str, *, secure: bool) -> PresentedCookie | None:
    """The token for *application*; None if there is none, or more than one: somebody else may have set one of them."""
    name = cookie_name(application, secure=secure).encode()
    values = [
        value
        for header, cookies in headers
        if header.lower() == b"cookie"
        for key, equals, value in (part.strip().partition(b"=") for part in cookies.split(b";"))
        if key == name and equals
    ]
    if len(values) != 1:
        return None
    token, dot, keeping = values[0].partition(b".")
    if not well_formed(token, APPLICATION_PREFIX) or (dot and len(keeping) != _KEEPING_LENGTH):
        return None
    secret = Secret(keeping.decode("latin-1")) if dot else None
    return PresentedCookie(application_digest(token, application), Secret(token.decode("ascii")), secret)
