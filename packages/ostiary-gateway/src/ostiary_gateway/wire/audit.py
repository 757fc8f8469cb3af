"""Audit events (``audit.k8s.io/v1``): written as text, and read back. Pure.

    scope of a request  ->  Frame (shared by equal requests)  ->  one line per stage
    line of a log  ->  decode_event  ->  RecordedEvent  ->  decode_user, decode_notes

An event is ASCII text without a line break.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from ostiary.core.redaction import without_tokens
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.wire.audit_policy import (
    API_VERSION,
    LEVEL_NAMES,
    REDACTED,
    SHADOW_STAGE,
    AuditLevel,
    Stage,
    redacted_uri,
)

# Writing. An event is built in two steps, because most of it is identical for repeated requests.

LONGEST_USER_AGENT = 1024
TRUNCATED = "...TRUNCATED"
# Characters of a path that need no encoding (RFC 3986, pchar).
_PATH_CHARACTERS = "/-._~!$&'()*+,;=:@"


@dataclass(frozen=True, slots=True)
class Frame:
    """The shared part of all events of equal requests, as pieces of JSON; `about` is the request and its user."""

    head: str
    about: str
    annotations: Mapping[str, str]
    tail: str


# Between the id of an event and its `about`.
_STAGES = {stage: f'","stage":"{stage.value}",' for stage in Stage}


def middle(stage: Stage, about: str) -> str:
    """Return what follows the id of an event of *stage*."""
    return _STAGES[stage] + about


@dataclass(frozen=True, slots=True)
class AboutObjects:
    """A template of `Frame.about` for different objects of one kind: JSON with gaps for the URI and the name."""

    before_name: str
    after_name: str

    def about(self, request_uri: str, name: str) -> str:
        """Fill in the gaps. Neither value may need escaping, or contain a secret."""
        return f'"requestURI":"{request_uri}",{self.before_name}{name}{self.after_name}'


def about_objects(about: str, request_uri: str, name: str) -> AboutObjects | None:
    """Build a template by replacing *request_uri* and *name* in *about*; None if they do not occur as expected.

    A redacted or escaped URI yields no template. *name* is empty for requests that are not for a single object.
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


# Up to the quote that opens the id; `line` appends the id and everything after it.
_HEADS = {
    level: f'{{"kind":"Event","apiVersion":"{API_VERSION}","level":"{name}","auditID":"'
    for level, name in LEVEL_NAMES.items()
}


@dataclass(frozen=True, slots=True)
class KeptNotes:
    """Annotations that are encoded as JSON once."""

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
    """Build a frame. *kept* are further annotations, shared by many requests."""
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
    """Return the source of a request, as the piece of JSON that `line` takes."""
    agent = without_tokens(user_agent, REDACTED)
    if len(agent) > LONGEST_USER_AGENT:
        agent = agent[:LONGEST_USER_AGENT] + TRUNCATED
    fields = _without_empty(sourceIPs=list(source_ips), userAgent=agent)
    return f",{_json(fields)[1:-1]}" if fields else ""


def outcome(code: int, *, reason: str = "", message: str = "") -> str:
    """Return the response status, as a piece of JSON for `line`."""
    status = "Failure" if code >= 400 and (reason or message) else ""
    fields = _without_empty(status=status, message=message, reason=reason)
    return f',"responseStatus":{_json({"metadata": {}, **fields, "code": code})}'


def tail(annotations: Mapping[str, str]) -> str:
    return f'","annotations":{_json(annotations)}}}' if annotations else '"}'


def line(
    head: str, audit_id: str, middle: str, origin: str, outcome: str, received: str, stamped: str, tail: str
) -> str:
    """Return one event. Called once or twice for every request, so it only concatenates."""
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
    """Return the event of a cluster's own decision about a request: with a stage of its own, and the request's id."""
    # The path was decoded, and may contain a question mark. Encoded as a URI path, it can be read back unchanged.
    uri = quote(request.path, safe=_PATH_CHARACTERS, errors="replace")
    middle = f'","stage":"{SHADOW_STAGE}",{_about(request, user, uri, impersonated, "")}'
    return line(_HEADS[AuditLevel.METADATA], audit_id, middle, "", "", received, stamped, tail(annotations))


def event_list(events: Sequence[str]) -> str:
    """Return events as the body of one request to an audit webhook."""
    return f'{{"kind":"EventList","apiVersion":"{API_VERSION}","metadata":{{}},"items":[{",".join(events)}]}}'


def body_object(body: bytes, *, without_managed_fields: bool = False) -> str | None:
    """Return a body as JSON text on one line; None if it is not a JSON object."""
    try:
        value = json.loads(body)
        if not isinstance(value, dict):
            return None
        if without_managed_fields:
            _drop_managed_fields(value)
        return _json(value)
    except (ValueError, RecursionError):
        # Protobuf, a table, a truncated response: nothing that a reader of events could parse.
        return None


def _drop_managed_fields(value: dict[str, Any]) -> None:
    items = value.get("items")
    for entry in (value, *(items if isinstance(items, list) else ())):
        metadata = entry.get("metadata") if isinstance(entry, dict) else None
        if isinstance(metadata, dict):
            metadata.pop("managedFields", None)


def authentication_failed(attempted: Sequence[str]) -> str:
    """Return the API server's message for a 401, with the kinds of credential in the request, such as ``bearer``."""
    if not attempted:
        return "Authentication failed, no credentials provided"
    return f"Authentication failed, attempted: {', '.join(attempted)}"


def _without_empty(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _json(value: Any) -> str:
    # Escaped to ASCII, so that nothing in it can end the line. NaN, which a body may contain, is not JSON.
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    if "\\ud" in text:
        # A header may contain bytes that are not text. An unpaired surrogate would make the event unreadable for many
        # parsers.
        whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        text = json.dumps(json.loads(whole), separators=(",", ":"))
    # Users put tokens where names belong: a namespace, the user to impersonate, a label.
    return without_tokens(text, REDACTED)


# Reading events, the gateway's and kube-apiserver's. Typed, so that a million of them can be read. Most events of a log
# have the user and the annotations of an earlier one, so these two stay text: a reader of many events decodes each text
# once. Objects in an event are not decoded at all.

EVENT = "Event"
# The value of a user or annotations that an event lacks.
NO_OBJECT = b"{}"

T = TypeVar("T")


class _Recorded(msgspec.Struct, rename="camel"):
    pass


class RecordedObject(_Recorded):
    """``objectRef``: the object of a request."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    api_group: str = ""
    api_version: str = ""
    subresource: str = ""


class RecordedStatus(_Recorded):
    """``responseStatus``: the status of the response."""

    code: int = 0
    message: str = ""


class RecordedEvent(_Recorded):
    """One event. `user`, `impersonated_user` and `annotations` are JSON text."""

    kind: str
    audit_id: str = msgspec.field(name="auditID")
    stage: str
    verb: str = ""
    request_uri: str = msgspec.field(name="requestURI", default="")
    user: msgspec.Raw = msgspec.Raw(NO_OBJECT)
    impersonated_user: msgspec.Raw = msgspec.Raw(NO_OBJECT)
    object_ref: RecordedObject | None = None
    response_status: RecordedStatus | None = None
    annotations: msgspec.Raw = msgspec.Raw(NO_OBJECT)
    source_ips: tuple[str, ...] | None = msgspec.field(name="sourceIPs", default=None)
    request_received_timestamp: str = ""


class RecordedUser(_Recorded):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: dict[str, tuple[str, ...] | None] | None = None


# Created once: creating a decoder while another thread does the same crashes msgspec 0.22.
_EVENT = msgspec.json.Decoder(RecordedEvent)
_USER = msgspec.json.Decoder(RecordedUser | None)
_NOTES = msgspec.json.Decoder(dict[str, str] | None)


def decode_event(line: bytes) -> RecordedEvent | None:
    """Return the event on *line*; None if there is none, or only a part of one."""
    event = _decode(_EVENT, line)
    return event if event is not None and event.kind == EVENT else None


def decode_user(text: bytes) -> UserInfo | None:
    """Return the user of an event; None if it has no name."""
    user = _decode(_USER, text)
    if user is None or not user.username:
        return None
    extra = tuple(sorted((key, values or ()) for key, values in (user.extra or {}).items()))
    return UserInfo(user.username, user.uid, user.groups or (), extra)


def decode_notes(text: bytes) -> dict[str, str]:
    """Return the annotations of an event; empty if it has none that can be decoded."""
    return _decode(_NOTES, text) or {}


def _decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T | None:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # Invalid events are counted, and never quoted: a truncated line may contain anything.
        return None
