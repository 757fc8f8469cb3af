"""Responses of ``/auth``: outcomes in, status, headers and JSON out. No side effects.

Errors are a Kubernetes `Status` without confidential detail; the log and the audit event have the rest. No response may
be cached by a browser or a proxy.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ostiary.core.scopes import decode
from ostiary.errors import LoginRefused
from ostiary.wire.status import failure, www_authenticate
from ostiary_gateway.authorization.implied_groups import implied_groups
from ostiary_gateway.interfaces.identity import PublishedDocument
from ostiary_gateway.interfaces.token_store import Found, Session, TokenRecord
from ostiary_gateway.login.clusters import UsersClusters
from ostiary_gateway.sessions import Issued, IssuedToken

# Starts a body that is streamed.
BodyStream = Callable[[], AsyncGenerator[bytes]]

_JSON = ("Content-Type", "application/json")
COMMON = (
    ("Cache-Control", "no-store"),
    ("Pragma", "no-cache"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
)
_NOT_DESCRIBED = str.maketrans({'"': "'", "\\": "/"})
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    429: "TooManyRequests",
    500: "InternalError",
    502: "BadGateway",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class LoginAnswer:
    """A response of ``/auth``. Neither headers nor body are in its repr: they may contain a token.

    `message` is set for an error; browsers get a page with it instead of this body. `recorded`: the log and the audit
    log have it already. `routine`: a regular step of the protocol, not a failure. `stream` yields the pieces of the
    body, about one per second and an empty one if there is nothing to send: a disconnected client or a shutdown of the
    gateway is noticed only between two pieces.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)
    message: str = ""
    recorded: bool = False
    routine: bool = False
    # Instead of the body, for long or endless responses.
    stream: BodyStream | None = field(default=None, repr=False)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def with_headers(self, *headers: tuple[str, str]) -> LoginAnswer:
        return replace(self, headers=(*self.headers, *headers))


def json_answer(status: int, value: Mapping[str, object]) -> LoginAnswer:
    # No Content-Length: the listener adds the framing.
    body = json.dumps(value, ensure_ascii=True).encode()
    return LoginAnswer(status, (_JSON, *COMMON), body)


def token_pair(pair: Issued, *, step_up: bool = False) -> LoginAnswer:
    """*step_up*: requests may wait for a step-up, so the client should poll ``/auth/step-up``."""
    session = pair.session
    return json_answer(
        200,
        {
            "token": pair.token.reveal(),
            "expires_at": time_text(pair.expires_at),
            "renewal_token": pair.renewal.reveal(),
            "session": session.id,
            "session_expires_at": time_text(session.expires_at),
            "user": session.user.username,
            "groups": list(session.user.groups),
            "sources": dict(session.sources),
            **({"step_up": True} if step_up else {}),
        },
    )


def stepped_up(session: Session) -> LoginAnswer:
    """Response instead of a token pair: the tokens that the client has now satisfy the step-up."""
    return json_answer(200, {"stepped_up": True, "session": session.id, "user": session.user.username})


def choices(urls: Mapping[str, str]) -> LoginAnswer:
    return json_answer(300, {"choices": [{"name": name, "url": url} for name, url in urls.items()]})


def redirect(url: str, status: int = 302) -> LoginAnswer:
    return LoginAnswer(status, (("Location", url), *COMMON))


def download(text: str, filename: str) -> LoginAnswer:
    disposition = ("Content-Disposition", f'attachment; filename="{filename}"')
    return LoginAnswer(200, (("Content-Type", "application/yaml"), disposition, *COMMON), text.encode())


def document(published: PublishedDocument) -> LoginAnswer:
    return LoginAnswer(200, (("Content-Type", published.media_type), *COMMON), published.content)


def methods(kinds: Mapping[str, str], programs: Sequence[str], gateway: str) -> LoginAnswer:
    """Return how users can sign in, for clients that offer a choice, and which providers are for workloads only."""
    providers = [{"name": name, "kind": kind} for name, kind in kinds.items()]
    others = {"programs": list(programs)} if programs else {}
    return json_answer(200, {"providers": providers, **others, "gateway": gateway})


def whoami(record: Found) -> LoginAnswer:
    session, sources = record.session, dict(record.session.sources)
    groups = [{"name": group, "source": sources.get(group, "")} for group in session.user.groups]
    groups += [{"name": group, "source": "gateway"} for group in implied_groups(session.user)]
    return json_answer(
        200,
        {
            "user": session.user.username,
            "groups": groups,
            "session": session.id,
            "provider": session.provider,
            "since": time_text(session.created_at),
            "expires_at": time_text(record.token.expires_at),
            "session_expires_at": time_text(session.expires_at),
            **_delegation(record.token),
        },
    )


def clusters(offered: UsersClusters, gateway: str) -> LoginAnswer:
    """Return the clusters of the caller, for clients that write kubeconfigs."""
    listed = [
        {"name": each.name, "label": each.label, "server": each.server, "access": each.use.value}
        for each in offered.clusters
    ]
    return json_answer(200, {"gateway": gateway, "upstreams": listed, "incomplete": offered.incomplete})


def _delegation(token: TokenRecord) -> dict[str, str]:
    """Return the scope and the actor of a scoped token."""
    if not token.delegation:
        return {}
    delegation = decode(token.delegation)
    return {"scope": str(delegation), **({"actor": delegation.actor} if delegation.actor else {})}


def grant_refusal(error: str, description: str = "", *, status: int = 400, routine: bool = False) -> LoginAnswer:
    """Return an OAuth error (RFC 6749, section 5.2; RFC 8628, section 3.5)."""
    # RFC 6749 allows a subset of ASCII in a description.
    plain = "".join(char if " " <= char <= "~" else "?" for char in description).translate(_NOT_DESCRIBED)
    details = {"error": error, **({"error_description": plain} if plain else {})}
    return replace(json_answer(status, details), routine=routine)


def exchange_answer(issued: IssuedToken, *, seconds: int, scope: str = "") -> LoginAnswer:
    """Return the response to a token exchange (RFC 8693, section 2.2.1)."""
    return json_answer(
        200,
        {
            "access_token": issued.token.reveal(),
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": seconds,
            **({"scope": scope} if scope else {}),
            "user": issued.session.user.username,
            "session": issued.session.id,
        },
    )


def program_token(issued: IssuedToken) -> LoginAnswer:
    """Like `token_pair`, but without a refresh token: the workload presents a newer proof instead."""
    session = issued.session
    return json_answer(
        200,
        {
            "token": issued.token.reveal(),
            "expires_at": time_text(issued.expires_at),
            "session": session.id,
            "session_expires_at": time_text(session.expires_at),
            "user": session.user.username,
            "groups": list(session.user.groups),
            "sources": dict(session.sources),
        },
    )


def no_content() -> LoginAnswer:
    return LoginAnswer(204, COMMON)


def challenge(scheme: str, advice: str = "") -> LoginAnswer:
    """Return a 401 with the challenge. *advice* is shown to a user who cannot respond to it."""
    return error(401, advice or "authentication required").with_headers(("WWW-Authenticate", scheme))


def bearer_challenge() -> LoginAnswer:
    return challenge(www_authenticate(error=False))


def refusal(refused: LoginRefused) -> LoginAnswer:
    """Return the error for a denied sign-in. Only the summary is disclosed, not the cause or the position."""
    if refused.retry_after is not None:
        wait = str(max(1, math.ceil(refused.retry_after)))
        return error(429, refused.summary).with_headers(("Retry-After", wait))
    if refused.www_authenticate:
        return error(401, refused.summary).with_headers(("WWW-Authenticate", refused.www_authenticate))
    return error(403, refused.summary)


def not_renewed(refusal: LoginRefused) -> LoginAnswer:
    """Return the error for an invalid refresh token.

    401: sign in again. 409: another client has just refreshed the session.
    """
    if refusal.retry_after is not None:
        return error(409, refusal.summary).with_headers(("Retry-After", "1"))
    return error(401, refusal.summary).with_headers(("WWW-Authenticate", www_authenticate(error=True)))


def no_good_token() -> LoginAnswer:
    return error(401, "the token is unknown, expired or revoked").with_headers(
        ("WWW-Authenticate", www_authenticate(error=True))
    )


def outage(status: int, reported: str = "") -> LoginAnswer:
    """Return the error for an IdP that could not be queried, which is not a denial.

    *reported* is the IdP's own error.
    """
    if reported:
        return error(status, f"the identity provider is unavailable: it reported {reported}")
    return error(status, "the identity provider is unavailable")


def method_not_allowed(allowed: Sequence[str]) -> LoginAnswer:
    return error(405, "method not allowed for this path").with_headers(("Allow", ", ".join(allowed)))


def too_many(retry_after: float) -> LoginAnswer:
    wait = str(max(1, math.ceil(retry_after)))
    return error(429, "too many attempts from this address: wait a moment").with_headers(("Retry-After", wait))


def error(code: int, message: str) -> LoginAnswer:
    return LoginAnswer(code, (_JSON, *COMMON), failure(code, _REASONS[code], message).body, message)


def time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
