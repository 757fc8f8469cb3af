"""The audit API of Kubernetes (``audit.k8s.io/v1``): the policy that says what is recorded, and the events.

    policy file  ->  Policy  ->  scope of a request  ->  Frame (what equal requests share)  ->  one line per stage

Called by `ostiary_gateway.audit`. Pure. Events that were recorded are read by `recorded_event`, which is imported by
those alone who do that: it needs a library of the gateway.
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

# Audit events as text. Pure.
#
#     scope of a request  ->  Frame (what equal requests share)  ->  one line per stage
#
# Called by `ostiary_gateway.audit`. An event is ASCII text without a line break. It is built in two steps, because the
# greater part of it is the same whenever somebody sends the same request again.

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


# Audit events as they are read back, ours and kube-apiserver's: typed, so that a million of them can be. Pure.
#
#     line of a log  ->  decode_event  ->  RecordedEvent  ->  decode_user, decode_notes
#
# Called by `ostiary_gateway.audit.recorded`. Most events of a log have the user and the annotations of an earlier one,
# so these two are left as text: whoever reads many events decodes each text once. An event may hold whole objects,
# which are not read at all.

EVENT = "Event"
# The text of a user or of annotations that an event does not have.
NO_OBJECT = b"{}"

T = TypeVar("T")


class _Recorded(msgspec.Struct, rename="camel"):
    pass


class RecordedObject(_Recorded):
    """``objectRef``: what a request was about."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    api_group: str = ""
    api_version: str = ""
    subresource: str = ""


class RecordedStatus(_Recorded):
    """``responseStatus``: how it was answered."""

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


# Built once: building a decoder while another thread does the same crashes msgspec 0.22.
_EVENT = msgspec.json.Decoder(RecordedEvent)
_USER = msgspec.json.Decoder(RecordedUser | None)
_NOTES = msgspec.json.Decoder(dict[str, str] | None)


def decode_event(line: bytes) -> RecordedEvent | None:
    """The event on *line*; None if there is none, or only a part of one."""
    event = _decode(_EVENT, line)
    return event if event is not None and event.kind == EVENT else None


def decode_user(text: bytes) -> UserInfo | None:
    """The user of an event; None if it names nobody."""
    user = _decode(_USER, text)
    if user is None or not user.username:
        return None
    extra = tuple(sorted((key, values or ()) for key, values in (user.extra or {}).items()))
    return UserInfo(user.username, user.uid, user.groups or (), extra)


def decode_notes(text: bytes) -> dict[str, str]:
    """The annotations of an event; empty if it has none that can be read."""
    return _decode(_NOTES, text) or {}


def _decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T | None:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # What cannot be read is counted, and never quoted: a cut line may hold anything.
        return None
