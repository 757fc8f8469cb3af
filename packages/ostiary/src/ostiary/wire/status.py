"""The body of every answer that is not the upstream's: a Kubernetes ``Status``, worded as kube-apiserver words it.

Called by the engine, the webhooks and the self reviews. Pure: each function gives the status code and the bytes. They
tell the caller what Kubernetes would, and nothing of the gateway; the detail is in the log and the audit record.
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
# Kubernetes escapes these in the words of a refusal, besides what its JSON encoder does.
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_ESCAPES |= {'"': '\\"', "\\": "\\\\"}


class Answer(NamedTuple):
    """A status code and a body of ``application/json``."""

    code: int
    body: bytes


def failure(code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> Answer:
    """A ``Status`` as Go encodes it, down to the line end."""
    return Answer(code, (go_json(failure_object(code, reason, message, details)) + "\n").encode("utf-8", "replace"))


def failure_object(code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
    """A ``Status`` before it is encoded."""
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status["message"] = message
    if reason:
        status["reason"] = reason
    if details is not None:
        status["details"] = details
    status["code"] = code
    return status


def message_of(body: bytes) -> str:
    """What a ``Status`` that another server sent says in its message; empty if it says nothing, or is none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    message = document.get("message") if isinstance(document, dict) else None
    return message if isinstance(message, str) else ""


# --- who, and may they ---

_UNAUTHORIZED = failure(401, "Unauthorized", "Unauthorized")


def unauthorized() -> Answer:
    """The same bytes whether there was no token, or an unknown, expired or revoked one."""
    return _UNAUTHORIZED


def sign_in_required() -> Answer:
    """For the scripts of a web application, whose session has ended."""
    return failure(401, "Unauthorized", "sign-in required: load a page of the application in the browser")


def step_up_required(message: str) -> Answer:
    """The token is good, and its owner must prove more before this request."""
    return failure(401, "Unauthorized", message)


def step_up_challenge(message: str, *, acr_values: Sequence[str], max_age: float | None) -> str:
    """What goes with it (RFC 9470, section 3)."""
    error = 'error="insufficient_user_authentication"'
    parts = ['Bearer realm="ostiary"', error, f"error_description={_param(message)}"]
    if acr_values:
        parts.append(f"acr_values={_param(' '.join(acr_values))}")
    if max_age is not None:
        parts.append(f'max_age="{int(max_age)}"')
    return ", ".join(parts)


def _param(text: str) -> str:
    """A quoted string of a header. Of ASCII only what RFC 6750 allows in it."""
    return '"' + "".join(char if " " <= char <= "~" and char not in '"\\' else "?" for char in text) + '"'


def refused_origin(message: str) -> Answer:
    return failure(403, "Forbidden", message)


def www_authenticate(error: bool, realm: str = "ostiary") -> str:
    """The challenge that goes with a 401 (RFC 6750, section 3): *error* if there was a token, and it is no good."""
    quoted = realm.replace("\\", "\\\\").replace('"', '\\"')
    return f'Bearer realm="{quoted}"' + (', error="invalid_token"' if error else "")


def forbidden(attributes: Attributes, reason: str = "") -> Answer:
    """Names who asked for what. *reason* is shown to the caller."""
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
    """The bytes that Kubernetes gives for an object that does not exist.

    They name the object and never its namespace: whoever may see nothing there learns only what they wrote. A request
    that names no object gets what an unknown path gets.
    """
    if not info.is_resource or not info.name:
        return no_route()
    return failure(404, "NotFound", f"{_qualified_resource(info)} {_quote(info.name)} not found", _details(info))


_NO_ROUTE = failure(404, "NotFound", _MISSING, {})


def no_route() -> Answer:
    """Nobody serves this host and path."""
    return _NO_ROUTE


def _qualified_resource(info: RequestInfo) -> str:
    return f"{info.resource}.{info.api_group}" if info.api_group else info.resource


def _details(info: RequestInfo) -> dict[str, str]:
    details = {"name": info.name, "group": info.api_group, "kind": info.resource}
    return {key: value for key, value in details.items() if value}


# --- what is wrong with the request ---


def bad_request(message: str) -> Answer:
    return failure(400, "BadRequest", message)


def method_not_allowed() -> Answer:
    return failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def not_admitted(info: RequestInfo, reason: str) -> Answer:
    """The request is allowed, but not now, or not so much of it: worded as Kubernetes' own admission words it."""
    return failure(403, "Forbidden", f"{_forbidden_subject(info)}: {reason}", _details(info))


def quota_unavailable() -> Answer:
    """Nobody could say whether the request is within its quota."""
    return failure(503, "ServiceUnavailable", "the quota of this request could not be counted; try again later")


def too_large() -> Answer:
    return failure(413, "RequestEntityTooLarge", "the request is larger than this resource allows")


def too_many(retry_after: float) -> Answer:
    """*retry_after* is rounded up to whole seconds, as in the header of that name."""
    seconds = max(1, math.ceil(retry_after))
    message = "Too many requests, please try again later."
    return failure(429, "TooManyRequests", message, {"retryAfterSeconds": seconds})


# --- what is wrong with us, or behind us ---


def internal(request_id: str = "") -> Answer:
    """*request_id* leads the operator to the cause, which the caller is not told."""
    message = f"Internal error occurred: see request {request_id} in the gateway's log" if request_id else ""
    return failure(500, "InternalError", message or "Internal error occurred")


def upstream_failed(code: int) -> Answer:
    """502, 503 or 504."""
    reason, message = _UPSTREAM[code]
    return failure(code, reason, message)


_UNAUTHENTICATED_GATEWAY = failure(
    503,
    "ServiceUnavailable",
    "the gateway cannot authenticate itself to the server behind it; your own sign-in is not affected",
)


def gateway_unauthenticated() -> Answer:
    """The upstream does not accept the gateway's own credential, or there is none: nothing that the caller can mend."""
    return _UNAUTHENTICATED_GATEWAY


def is_unauthorized(body: bytes) -> bool:
    """Whether this is the ``Status`` by which an API server rejects a credential, in any encoding that it has."""
    if body.startswith((b"k8s\x00", b"\xd9\xd9\xf7")):
        return b"Unauthorized" in body and b"Status" in body
    words = re.sub(rb"[\"'\s,]", b"", body)
    return b"kind:Status" in words and b"reason:Unauthorized" in words


def _quote(text: str) -> str:
    """*text* as Go's ``%q`` prints it."""
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
