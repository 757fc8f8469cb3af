"""Kubernetes ``Status`` bodies of all responses of the gateway itself, worded like kube-apiserver's.

Each function returns the status code and the body. They contain what Kubernetes would send to the client, and no
details of the gateway; those are in the log and the audit event. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ostiary.model import Attributes, RequestInfo
from ostiary.wire.go_json import go_json

_MISSING = "the server could not find the requested resource"
_UPSTREAM = {
    502: ("", "the server behind the gateway gave no usable answer"),
    503: ("ServiceUnavailable", "the server behind the gateway is unreachable"),
    504: ("Timeout", "the server behind the gateway did not answer in time"),
}
# Kubernetes escapes these in the message of a 403, in addition to its JSON encoder.
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_ESCAPES |= {'"': '\\"', "\\": "\\\\"}


class Answer(NamedTuple):
    """A status code and a body of ``application/json``."""

    code: int
    body: bytes


def failure(code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> Answer:
    """Return a ``Status`` as encoded by Go, including the newline."""
    return Answer(code, (go_json(failure_object(code, reason, message, details)) + "\n").encode("utf-8", "replace"))


def failure_object(code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a ``Status`` before encoding."""
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status["message"] = message
    if reason:
        status["reason"] = reason
    if details is not None:
        status["details"] = details
    status["code"] = code
    return status


def message_of(body: bytes) -> str:
    """Return the message of another server's ``Status``; empty if it has none, or is no ``Status``."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    message = document.get("message") if isinstance(document, dict) else None
    return message if isinstance(message, str) else ""


# --- authentication and authorization ---

_UNAUTHORIZED = failure(401, "Unauthorized", "Unauthorized")


def unauthorized() -> Answer:
    """Return a 401. The bytes are the same for a missing, unknown, expired or revoked token."""
    return _UNAUTHORIZED


def sign_in_required() -> Answer:
    """Return the response for scripts of a web application whose session has ended."""
    return failure(401, "Unauthorized", "sign-in required: load a page of the application in the browser")


def step_up_required(message: str) -> Answer:
    """Return the response for a valid token whose owner must prove more before this request."""
    return failure(401, "Unauthorized", message)


def step_up_challenge(message: str, *, acr_values: Sequence[str], max_age: float | None) -> str:
    """Return the challenge for a step-up response (RFC 9470, section 3)."""
    error = 'error="insufficient_user_authentication"'
    parts = ['Bearer realm="ostiary"', error, f"error_description={_param(message)}"]
    if acr_values:
        parts.append(f"acr_values={_param(' '.join(acr_values))}")
    if max_age is not None:
        parts.append(f'max_age="{int(max_age)}"')
    return ", ".join(parts)


def _param(text: str) -> str:
    """Return *text* as a quoted header parameter, limited to the ASCII characters that RFC 6750 allows."""
    return '"' + "".join(char if " " <= char <= "~" and char not in '"\\' else "?" for char in text) + '"'


def refused_origin(message: str) -> Answer:
    return failure(403, "Forbidden", message)


def www_authenticate(error: bool, realm: str = "ostiary") -> str:
    """Return the challenge of a 401 (RFC 6750, section 3). *error* if there was a token, and it is invalid."""
    quoted = realm.replace("\\", "\\\\").replace('"', '\\"')
    return f'Bearer realm="{quoted}"' + (', error="invalid_token"' if error else "")


def forbidden(attributes: Attributes, reason: str = "") -> Answer:
    """Return a 403 that names the user and the request. *reason* is shown to the client."""
    info = attributes.request
    words = _cannot(attributes).translate(_HTML) + (f": {reason}" if reason else "")
    return failure(403, "Forbidden", f"{_forbidden_subject(info)}: {words}", _details(info))


def _forbidden_subject(info: RequestInfo) -> str:
    if not info.resource and not info.api_group:
        return "forbidden"
    name = f" {_quote(info.name)}" if info.name else ""
    return f"{_qualified_resource(info)}{name} is forbidden"


def _cannot(attributes: Attributes) -> str:
    info = attributes.request
    who = f"User {_quote(attributes.user.username)} cannot {info.verb}"
    if not info.is_resource:
        return f"{who} path {_quote(info.path)}"
    resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
    scope = f"in the namespace {_quote(info.namespace)}" if info.namespace else "at the cluster scope"
    return f"{who} resource {_quote(resource)} in API group {_quote(info.api_group)} {scope}"


def not_found(info: RequestInfo) -> Answer:
    """Return the bytes that Kubernetes returns for an object that does not exist.

    They name the object but not its namespace, so a user without access learns nothing beyond their own request. A
    request that names no object gets the response for an unknown path.
    """
    if not info.is_resource or not info.name:
        return no_route()
    return failure(404, "NotFound", f"{_qualified_resource(info)} {_quote(info.name)} not found", _details(info))


_NO_ROUTE = failure(404, "NotFound", _MISSING, {})


def no_route() -> Answer:
    """Return the response for a host and path without a route."""
    return _NO_ROUTE


def _qualified_resource(info: RequestInfo) -> str:
    return f"{info.resource}.{info.api_group}" if info.api_group else info.resource


def _details(info: RequestInfo) -> dict[str, str]:
    details = {"name": info.name, "group": info.api_group, "kind": info.resource}
    return {key: value for key, value in details.items() if value}


# --- invalid and rejected requests ---


def bad_request(message: str) -> Answer:
    return failure(400, "BadRequest", message)


def method_not_allowed() -> Answer:
    return failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def not_admitted(info: RequestInfo, reason: str) -> Answer:
    """Return the response to a request that admission rejects, worded like Kubernetes' own admission."""
    return failure(403, "Forbidden", f"{_forbidden_subject(info)}: {reason}", _details(info))


def quota_unavailable() -> Answer:
    """Return the response if the quota could not be checked."""
    return failure(503, "ServiceUnavailable", "the quota of this request could not be counted; try again later")


def too_large() -> Answer:
    return failure(413, "RequestEntityTooLarge", "the request is larger than this resource allows")


def too_many(retry_after: float) -> Answer:
    """Return a 429. *retry_after* is rounded up to whole seconds, like the header of that name."""
    seconds = max(1, math.ceil(retry_after))
    message = "Too many requests, please try again later."
    return failure(429, "TooManyRequests", message, {"retryAfterSeconds": seconds})


# --- failures of the gateway or the upstream ---


def internal(request_id: str = "") -> Answer:
    """Return a 500. *request_id* leads the operator to the cause, which the client does not see."""
    message = f"Internal error occurred: see request {request_id} in the gateway's log" if request_id else ""
    return failure(500, "InternalError", message or "Internal error occurred")


def upstream_failed(code: int) -> Answer:
    """Return a 502, 503 or 504."""
    reason, message = _UPSTREAM[code]
    return failure(code, reason, message)


_UNAUTHENTICATED_GATEWAY = failure(
    503,
    "ServiceUnavailable",
    "the gateway cannot authenticate itself to the server behind it; your own sign-in is not affected",
)


def gateway_unauthenticated() -> Answer:
    """Return the response if the upstream rejects the gateway's own credential, or there is none.

    The client cannot fix it.
    """
    return _UNAUTHENTICATED_GATEWAY


def is_unauthorized(body: bytes) -> bool:
    """Return whether *body* is the ``Status`` by which an API server rejects a credential, in any of its encodings."""
    if body.startswith((b"k8s\x00", b"\xd9\xd9\xf7")):
        return b"Unauthorized" in body and b"Status" in body
    words = re.sub(rb"[\"'\s,]", b"", body)
    return b"kind:Status" in words and b"reason:Unauthorized" in words


def _quote(text: str) -> str:
    """Format *text* like Go's ``%q``."""
    return '"' + "".join(map(_escape_char, text)) + '"' if not text.isalnum() else f'"{text}"'


def _escape_char(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
