"""Read recorded requests back from audit logs, for ``explain`` and ``policy replay|suggest``.

    audit log  ->  lines  ->  RecordedRequest

Events of kube-apiserver have the same form, so its logs can be read too. Lines that a crash cut short are counted, and
never quoted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import unquote

from ostiary.core.bounded_cache import Bounded
from ostiary.core.scopes import BEYOND_SCOPE
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.audit.ended_requests import EndedRequest
from ostiary_gateway.audit.log_files import Counts, LogPath, lines
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.wire.audit import NO_OBJECT, RecordedEvent, RecordedObject, decode_event, decode_notes, decode_user
from ostiary_gateway.wire.audit_policy import CAPABILITIES, DECISION, REASON, SCOPE, SHADOW_STAGE, UPSTREAM, Stage
from ostiary_gateway.wire.request_info import PROXY, WATCH, long_running, request_info

ALLOW, FORBID = "allow", "forbid"
OWN_GROUP = "ostiary.dev"

_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
# A long-running request has two events, and both hold the decision.
_STAGES = (Stage.COMPLETE.value, Stage.STARTED.value)
_TEXTS_KEPT = 20_000
# Longer texts are not cached: a line may have 16 MiB.
_LONGEST_KEPT = 8 * 1024
NO_PREFIXES: Mapping[str, str] = {}
_NOBODY = (NO_OBJECT, b"null")
# The verbs of a request to one object, and to a collection, as `request_info` derives them from methods.
_OF_ONE = frozenset(("get", "create", "update", "patch", "delete"))
_OF_MANY = frozenset(("list", "watch", "create", "update", "patch", "deletecollection"))


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A recorded request that reached a decision.

    `decision` has the recorded outcome and reason. `status` is that of the response, if it was recorded. `scope` is
    that of a scoped token. `actor` is the user who sent the request on behalf of `attributes.user`, if it was another
    user.
    """

    id: str
    at: datetime
    attributes: Attributes
    decision: Decision
    status: int = 0
    scope: str = ""
    actor: str = ""

    @property
    def refused_by_scope(self) -> bool:
        """Report whether the request was out of the token's scope, so that no policy was evaluated."""
        return not self.decision.allowed and self.decision.reason.startswith(BEYOND_SCOPE)


class _Notes(NamedTuple):
    """What the annotations of an event hold. Most events of a log share theirs with many others."""

    decision: Decision | None
    hidden: Decision | None
    scope: str
    upstream: str
    capabilities: tuple[str, ...]


class EventReader:
    """Convert events to requests. Decoded users and annotations are cached, because most events repeat them.

    *upstream* is that of events that name none: a gateway with one upstream does not record it. *prefixes* are the path
    prefixes that the gateway strips for each upstream: an event has the path as sent, and the decision was about the
    rest.
    """

    def __init__(self, upstream: str = "", prefixes: Mapping[str, str] = NO_PREFIXES) -> None:
        self._upstream = upstream
        self._prefixes = prefixes
        self._users: Bounded[bytes, UserInfo | None] = Bounded(_TEXTS_KEPT)
        self._notes: Bounded[bytes, _Notes] = Bounded(_TEXTS_KEPT)

    def request_of(self, event: RecordedEvent) -> RecordedRequest | None:
        """Return the request of *event*, or None if it was unauthenticated or reached no decision."""
        notes = self._notes_of(bytes(event.annotations))
        if notes.decision is None or not event.request_uri:
            return None
        user = sender = self._user_of(bytes(event.user))
        text, actor = bytes(event.impersonated_user), ""
        if text not in _NOBODY:
            # With impersonation, the decision was about the impersonated user. If that user cannot be decoded, do not
            # fall back to the sender: the request says nothing about the sender's rights.
            user = self._user_of(text)
            actor = "" if user is sender or sender is None else sender.username
        at = _time(event.request_received_timestamp)
        if at is None or user is None:
            return None
        status = 0 if event.response_status is None else event.response_status.code
        return RecordedRequest(
            event.audit_id,
            at,
            Attributes(user, _request(event, notes, self._upstream, self._prefixes)),
            notes.hidden if status == 404 and notes.hidden is not None else notes.decision,
            status,
            notes.scope,
            actor,
        )

    def _user_of(self, text: bytes) -> UserInfo | None:
        if text in self._users:
            return self._users[text]
        user = decode_user(text)
        if len(text) <= _LONGEST_KEPT:
            self._users.keep(text, user)
        return user

    def _notes_of(self, text: bytes) -> _Notes:
        notes = self._notes.get(text)
        if notes is None:
            notes = _read_notes(decode_notes(text))
            if len(text) <= _LONGEST_KEPT:
                self._notes.keep(text, notes)
        return notes


def _read_notes(annotations: dict[str, str]) -> _Notes:
    decision = hidden = None
    verdict, reason = annotations.get(DECISION), annotations.get(REASON, "")
    if verdict == ALLOW:
        decision = Decision(Verdict.ALLOW, reason)
    elif verdict == FORBID:
        decision, hidden = Decision(Verdict.NO_OPINION, reason), Decision(Verdict.NO_OPINION, reason, hidden=True)
    capabilities = tuple(filter(None, annotations.get(CAPABILITIES, "").split(",")))
    return _Notes(decision, hidden, annotations.get(SCOPE, ""), annotations.get(UPSTREAM, ""), capabilities)


def find(
    paths: Iterable[LogPath],
    audit_id: str,
    *,
    upstreams: Sequence[str] = (),
    prefixes: Mapping[str, str] = NO_PREFIXES,
) -> RecordedRequest | EndedRequest | None:
    """Return the request with this id. Raises `ConfigurationError` if a file cannot be read.

    For a request that reached no decision (a sign-in, an unknown token), return how it ended.
    """
    lowered_id = audit_id.strip().lower()
    reader = EventReader(upstreams[0] if len(upstreams) == 1 else "", prefixes)
    text, counts = lowered_id.encode("utf-8", "replace"), Counts()
    request: RecordedRequest | None = None
    ended: EndedRequest | None = None
    for path in paths:
        for _, line in lines(path, counts):
            if text not in line.lower():
                continue
            event = decode_event(line)
            if event is None or event.audit_id.lower() != lowered_id:
                continue
            # A request may have several events; the last one has the response.
            if event.stage != SHADOW_STAGE:
                request = reader.request_of(event) or request
            ended = decode_end(event) or ended
    return request or ended


def read(
    paths: Iterable[LogPath],
    counts: Counts,
    *,
    upstreams: Sequence[str] = (),
    prefixes: Mapping[str, str] = NO_PREFIXES,
) -> Iterator[RecordedRequest]:
    """Yield each decided request once. Raises `ConfigurationError` if a file cannot be read.

    *upstreams* are those of the gateway: if there is only one, events do not name it.
    """
    reader = EventReader(upstreams[0] if len(upstreams) == 1 else "", prefixes)
    # The stage of the first event of long-running requests, until the second one is read. Other requests have one
    # event, so storing them would waste memory. kube-apiserver lets clients choose the id, so the id alone does not
    # identify a request.
    lasting: dict[int, str] = {}
    for path in paths:
        for number, line in lines(path, counts):
            event = decode_event(line)
            if event is None:
                counts.count_unreadable(path, number)
                continue
            if event.stage not in _STAGES:
                continue
            key = hash((event.audit_id, event.request_uri))
            if lasting.get(key, event.stage) != event.stage:
                del lasting[key]
                continue
            request = reader.request_of(event)
            if request is None:
                counts.undecided += 1
                continue
            if event.stage == Stage.STARTED.value or long_running(request.attributes.request):
                lasting[key] = event.stage
            yield request


def decode_request(line: bytes) -> RecordedRequest | None:
    """Return the request on *line*, or None if it was unauthenticated or undecided, or the line is not an event."""
    event = decode_event(line)
    return None if event is None else EventReader().request_of(event)


def decode_end(event: RecordedEvent) -> EndedRequest | None:
    """Return how the request of *event* ended, whatever it was, or None if it has not ended."""
    if event.stage not in (Stage.COMPLETE.value, Stage.PANIC.value):
        return None
    at = _time(event.request_received_timestamp)
    if at is None:
        return None
    notes, user = decode_notes(bytes(event.annotations)), decode_user(bytes(event.user))
    response = event.response_status
    return EndedRequest(
        event.audit_id,
        at,
        0 if response is None else response.code,
        "" if response is None else response.message,
        event.verb.upper(),
        event.request_uri.partition("?")[0],
        (event.source_ips or ("",))[0],
        notes.get("ostiary.dev/claimed-user", "") if user is None else user.username,
        notes.get("ostiary.dev/login", ""),
        notes.get("ostiary.dev/provider", ""),
    )


def _time(text: str) -> datetime | None:
    """Parse the time of an event. A time without a zone is UTC, in whichever zone this command runs."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        # A time in year 1 may lie before the range of `datetime` in UTC.
        return None


def with_upstream(record: RecordedRequest, upstreams: Sequence[str]) -> RecordedRequest:
    """Return *record* with its upstream, which events omit if there is only one. The built-in API has none."""
    info = record.attributes.request
    if info.upstream or len(upstreams) != 1 or info.api_group == OWN_GROUP:
        return record
    request = replace(info, upstream=upstreams[0])
    return replace(record, attributes=replace(record.attributes, request=request))


def _request(event: RecordedEvent, notes: _Notes, only_upstream: str, prefixes: Mapping[str, str]) -> RequestInfo:
    verb, (path, _, query), about = event.verb, event.request_uri.partition("?"), event.object_ref
    prefix = prefixes.get(notes.upstream or only_upstream, "")
    if prefix and (path == prefix or path.startswith(f"{prefix}/")):
        path = path[len(prefix) :] or "/"
    if about is None or not about.resource:
        return RequestInfo(verb, verb.upper(), _decoded(path), upstream=notes.upstream or only_upstream)
    upstream = notes.upstream or ("" if about.api_group == OWN_GROUP else only_upstream)
    method = _METHODS.get(verb, "GET")
    is_plain = _is_plain(about, verb, path, query)
    if not is_plain:
        mapped = _as_mapped(about, RequestLine(method, path, query), verb)
        if mapped is not None:
            return replace(mapped, upstream=upstream, capabilities=notes.capabilities)
    return RequestInfo(
        verb=verb,
        method=method,
        path=path,
        is_resource=True,
        modifier=(WATCH if verb == "watch" else PROXY if about.subresource == "proxy" else "") if is_plain else "",
        api_group=about.api_group,
        api_version=about.api_version,
        namespace=about.namespace,
        resource=about.resource,
        subresource=about.subresource,
        name=about.name,
        capabilities=notes.capabilities,
        upstream=upstream,
        of_kubernetes=is_plain,
    )


def _decoded(path: str) -> str:
    """Decode a path as the authorizer saw it."""
    if "%" not in path:
        return path
    try:
        return unquote(path, errors="strict")
    except ValueError:
        return path


def _is_plain(about: RecordedObject, verb: str, path: str, query: str) -> bool:
    """Report whether the request line contains nothing but the object reference, so that it need not be parsed.

    This holds for most lines. A namespace, which lies in itself, and a selector need parsing.
    """
    if about.resource == "namespaces" or verb not in (_OF_ONE if about.name else _OF_MANY):
        return False
    if not about.name and "elector" in query:
        return False
    version = f"/apis/{about.api_group}/{about.api_version}" if about.api_group else f"/api/{about.api_version}"
    place = (
        f"{version}/namespaces/{about.namespace}/{about.resource}" if about.namespace else f"{version}/{about.resource}"
    )
    if about.name:
        place = f"{place}/{about.name}/{about.subresource}" if about.subresource else f"{place}/{about.name}"
    elif about.subresource:
        return False
    return path == place and "%" not in path


def _as_mapped(about: RecordedObject, line: RequestLine, verb: str) -> RequestInfo | None:
    """Return the request parsed from its request line, with its selectors, if that matches the reference."""
    try:
        mapped = request_info(line)
    except ValueError:
        return None
    # kube-apiserver fills in the name of a new object after authorization, when it has read the object.
    is_new = verb == "create" and not mapped.name
    is_same = (
        mapped.verb == verb
        and mapped.resource == about.resource
        and (mapped.name == about.name or is_new)
        and mapped.namespace == about.namespace
        and mapped.subresource == about.subresource
        and mapped.api_group == about.api_group
    )
    return mapped if is_same else None
