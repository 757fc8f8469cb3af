"""The answers to requests that do not reach the application: the same status, body and headers as the gateway's.

Called by the gatekeeper. What is wrong is told to the operator alone: it is the `cause` of the exception.
"""

from __future__ import annotations

from ostiary.errors import AccessRefused
from ostiary.gateway.authorize.ruling import BeyondScope
from ostiary.model import Attributes, Decision, RequestInfo
from ostiary.wire import status

_UNAVAILABLE = status.failure(
    503, "ServiceUnavailable", "the server that knows this token is unreachable; your own sign-in is not affected"
)


def unauthorized(request_id: str, *, attempted: bool) -> AccessRefused:
    """401, the same for a token that is unknown, expired or revoked."""
    challenge = ("WWW-Authenticate", status.www_authenticate(attempted))
    cause = "the token is unknown, expired or revoked" if attempted else "it presents no token"
    return _refusal("the request is not authenticated", request_id, status.unauthorized(), cause, challenge)


def forbidden(request_id: str, attributes: Attributes, decision: Decision) -> AccessRefused:
    """403; 404 if the decision hides what is there, and nothing else tells the two apart."""
    # Who holds a token may know what it is for.
    reason = decision.reason if isinstance(decision, BeyondScope) else ""
    answer = status.not_found(attributes.request) if decision.hidden else status.forbidden(attributes, reason)
    return _refusal("permission denied", request_id, answer, decision.reason or "no policy allows it")


def missing(request_id: str, info: RequestInfo) -> AccessRefused:
    """404 for an object that does not exist: the bytes that a hidden refusal has."""
    return _refusal("there is no such object", request_id, status.not_found(info), "the application did not find it")


def bad_request(request_id: str, message: str) -> AccessRefused:
    return _refusal("the request cannot be understood", request_id, status.bad_request(message), message)


def unavailable(request_id: str, cause: str) -> AccessRefused:
    """503: nobody could say whose the token is."""
    return _refusal("the token could not be checked", request_id, _UNAVAILABLE, cause)


def undecided(request_id: str, cause: str) -> AccessRefused:
    """500: nobody could say whether the request is allowed, or its record cannot be kept."""
    return _refusal("the request could not be decided", request_id, status.internal(), cause)


def _refusal(summary: str, request_id: str, answer: status.Answer, cause: str, *more: tuple[str, str]) -> AccessRefused:
    code, body = answer
    headers = [
        ("Audit-Id", request_id),
        ("Cache-Control", "no-cache, private"),
        ("Content-Type", "application/json"),
        *more,
    ]
    if code != 404:
        # Kubernetes does not set it on what is missing, so it would tell what is only hidden.
        headers.append(("X-Content-Type-Options", "nosniff"))
    return AccessRefused(summary, status=code, headers=headers, body=body, cause=cause)
