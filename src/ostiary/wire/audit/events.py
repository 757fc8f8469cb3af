"""Audit events as text. Pure.

    scope of a request  ->  Frame (what equal requests share)  ->  one line per stage

Called by `ostiary.gateway.audit`. An event is ASCII text without a line break. It is built in two steps, because the
greater part of it is the same whenever somebody sends the same request again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ostiary.core.secrets.redact import without_tokens
from ostiary.model import RequestInfo, UserInfo
from ostiary.wire.audit.levels import API_VERSION, LEVEL_NAMES, SHADOW_STAGE, AuditLevel, Stage
from ostiary.wire.audit.redaction import REDACTED, redacted_uri

LONGEST_USER_AGENT = 1024
TRUNCATED = "...TRUNCATED"
# What a path may hold without encoding (RFC 3986, pchar).
_PATH_CHARACTERS = "/-._~!$&'()*+,;=:@"


@dataclass(frozen=True, slots=True)
class Frame:
    """What all events of equal requests share, as pieces of JSON text; `about` is what was asked, and by whom."""

    head: str
    about: str
    annotations: Mapping[str, str]
    tail: str


# Between the id of an event and what it is about.
_STAGES = {stage: f'","stage":"{stage.value}",' for stage in Stage}


def middle(stage: Stage, about: str) -> str:
    """What follows the id of an event of *stage*."""
    return _STAGES[stage] + about


@dataclass(frozen=True, slots=True)
class AboutObjects:
    """What requests for different objects of one kind are about: JSON text with gaps for the URI and for the name."""

    before_name: str
    after_name: str

    def about(self, request_uri: str, name: str) -> str:
        """Of the request for the object *name*. Neither may need escaping, or hold a secret."""
        return f'"requestURI":"{request_uri}",{self.before_name}{name}{self.after_name}'


def about_objects(about: str, request_uri: str, name: str) -> AboutObjects | None:
    """The text of a frame with gaps in the place of *request_uri* and *name*; None if it does not have them like that.

    A URI of which something is redacted or escaped leaves no such gap. *name* is empty for requests for no one object.
    """
    uri = f'"requestURI":"{request_uri}",'
    if not about.startswith(uri):
        return None
    rest = about[len(uri) :]
    if not name:
        return AboutObjects(rest, "")
    # A quote within a string is escaped, so these are the members and not a part of some text.
    before, mark, reference = rest.rpartition(',"objectRef":{')
    first, member, last = reference.partition(f'"name":"{name}"')
    if not mark or not member:
        return None
    return AboutObjects(f'{before}{mark}{first}"name":"', f'"{last}')


# Up to the quote that opens the id; the id and everything after it is joined on by `line`.
_HEADS = {
    level: f'{{"kind":"Event","apiVersion":"{API_VERSION}","level":"{name}","auditID":"'
    for level, name in LEVEL_NAMES.items()
}


@dataclass(frozen=True, slots=True)
class KeptNotes:
    """Annotations that are made JSON once."""

    annotations: Mapping[str, str]
    members: str


def kept_notes(annotations: Mapping[str, str]) -> KeptNotes:
    return KeptNotes(annotations, _json(annotations)[1:-1])


def frame(
    level: AuditLevel,
    request: RequestInfo,
    user: UserInfo | None,
    *,
    request_uri: str,
    impersonated: UserInfo | None = None,
    impersonation_constraint: str = "",
    annotations: Mapping[str, str] | None = None,
    kept: KeptNotes | None = None,
) -> Frame:
    """*kept* are further annotations, which many requests have in common."""
    about = _about(request, user, request_uri, impersonated, impersonation_constraint)
    own = dict(annotations or {})
    if kept is None:
        return Frame(_HEADS[level], about, own, tail(own))
    members = f"{_json(own)[1:-1]},{kept.members}" if own else kept.members
    return Frame(_HEADS[level], about, {**own, **kept.annotations}, f'","annotations":{{{members}}}}}')


def _about(
    request: RequestInfo, user: UserInfo | None, uri: str, impersonated: UserInfo | None, constraint: str
) -> str:
    fields: dict[str, Any] = {"requestURI": redacted_uri(uri), "verb": request.verb, "user": _user(user)}
    if impersonated is not None:
        fields["impersonatedUser"] = _user(impersonated)
    if constraint:
        fields["authenticationMetadata"] = {"impersonationConstraint": constraint}
    if request.is_resource:
        fields["objectRef"] = _object_ref(request)
    return _json(fields)[1:-1]


def _user(user: UserInfo | None) -> dict[str, Any]:
    if user is None:
        return {}
    extra = {key: list(values) for key, values in user.extra}
    return _without_empty(username=user.username, uid=user.uid, groups=list(user.groups), extra=extra)


def _object_ref(request: RequestInfo) -> dict[str, Any]:
    return _without_empty(
        resource=request.resource,
        namespace=request.namespace,
        name=request.name,
        apiGroup=request.api_group,
        apiVersion=request.api_version,
        subresource=request.subresource,
    )


def origin(source_ips: Iterable[str], user_agent: str) -> str:
    """Where requests come from, as the piece of JSON that `line` wants."""
    agent = without_tokens(user_agent, REDACTED)
    if len(agent) > LONGEST_USER_AGENT:
        agent = agent[:LONGEST_USER_AGENT] + TRUNCATED
    fields = _without_empty(sourceIPs=list(source_ips), userAgent=agent)
    return f",{_json(fields)[1:-1]}" if fields else ""


def outcome(code: int, *, reason: str = "", message: str = "") -> str:
    """How the request was answered, as a piece of JSON for `line`."""
    status = "Failure" if code >= 400 and (reason or message) else ""
    fields = _without_empty(status=status, message=message, reason=reason)
    return f',"responseStatus":{_json({"metadata": {}, **fields, "code": code})}'


def tail(annotations: Mapping[str, str]) -> str:
    return f'","annotations":{_json(annotations)}}}' if annotations else '"}'


def line(
    head: str, audit_id: str, middle: str, origin: str, outcome: str, received: str, stamped: str, tail: str
) -> str:
    """One event. Called once or twice for every request, so it only joins."""
    return (
        f'{head}{audit_id}{middle}{origin}{outcome},"requestReceivedTimestamp":"{received}"'
        f',"stageTimestamp":"{stamped}{tail}\n'
    )


def shadow_line(
    audit_id: str,
    request: RequestInfo,
    user: UserInfo,
    impersonated: UserInfo | None,
    *,
    received: str,
    stamped: str,
    annotations: Mapping[str, str],
) -> str:
    """The event that says what a cluster decided about a request: of its own stage, with the id of the request."""
    # The path was decoded, and may hold a question mark. As the path of a URI it is read back as it was.
    uri = quote(request.path, safe=_PATH_CHARACTERS, errors="replace")
    middle = f'","stage":"{SHADOW_STAGE}",{_about(request, user, uri, impersonated, "")}'
    return line(_HEADS[AuditLevel.METADATA], audit_id, middle, "", "", received, stamped, tail(annotations))


def event_list(events: Sequence[str]) -> str:
    """Many events as the body of one request to an audit webhook."""
    return f'{{"kind":"EventList","apiVersion":"{API_VERSION}","metadata":{{}},"items":[{",".join(events)}]}}'


def body_object(body: bytes, *, without_managed_fields: bool = False) -> str | None:
    """A body as JSON text on one line; None if it is not a JSON object."""
    try:
        value = json.loads(body)
        if not isinstance(value, dict):
            return None
        if without_managed_fields:
            _drop_managed_fields(value)
        return _json(value)
    except (ValueError, RecursionError):
        # Protobuf, a table, half an answer: there is nothing here that a reader of events could read.
        return None


def _drop_managed_fields(value: dict[str, Any]) -> None:
    items = value.get("items")
    for entry in (value, *(items if isinstance(items, list) else ())):
        metadata = entry.get("metadata") if isinstance(entry, dict) else None
        if isinstance(metadata, dict):
            metadata.pop("managedFields", None)


def authentication_failed(attempted: Sequence[str]) -> str:
    """The words of the API server for a 401, with the kinds of credential that were shown, such as ``bearer``."""
    if not attempted:
        return "Authentication failed, no credentials provided"
    return f"Authentication failed, attempted: {', '.join(attempted)}"


def _without_empty(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _json(value: Any) -> str:
    # Escaped to ASCII, so that nothing in it can end the line. NaN, which a body may hold, is not JSON.
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    if "\\ud" in text:
        # A header may hold bytes that are no text. Half of a surrogate pair would make the event unreadable to many.
        whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        text = json.dumps(json.loads(whole), separators=(",", ":"))
    # People put tokens where names belong: a namespace, the user to impersonate, a label.
    return without_tokens(text, REDACTED)
