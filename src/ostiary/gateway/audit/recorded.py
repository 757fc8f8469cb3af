"""Audit events read back: what was asked, by whom, and what was decided then.

    audit log  ->  lines  ->  RecordedRequest  ->  ``ostiary explain``, ``ostiary policy replay``

Called by the commands, never by the gateway that serves. Events of kube-apiserver have the same form, so its logs can
be read too. A log may hold what a crash cut short: such lines are counted, and never quoted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ostiary.core.delegation import BEYOND_SCOPE
from ostiary.errors import ConfigurationError
from ostiary.gateway.audit.ended_requests import EndedRequest
from ostiary.interfaces.attributes import RequestLine
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary.wire.audit import CAPABILITIES, DECISION, REASON, SCOPE, UPSTREAM, Stage
from ostiary.wire.request import request_info

ALLOW, FORBID = "allow", "forbid"
OWN_GROUP = "ostiary.dev"

# A JSON object of an audit event, with fields of any type.
Event = dict[str, Any]

_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
# A long-running request has two events; both have the decision.
_STAGES = (Stage.COMPLETE.value, Stage.STARTED.value)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request that was decided. `decision` tells what the record does: allowed or not, and why; `status` what was
    answered in the end, if that is recorded; `scope` what its token may be used for, if that is less than its owner."""

    id: str
    at: datetime
    attributes: Attributes
    decision: Decision
    status: int = 0
    scope: str = ""

    @property
    def refused_by_scope(self) -> bool:
        """Whether the policy was not even asked: the token is not for this."""
        return not self.decision.allowed and self.decision.reason.startswith(BEYOND_SCOPE)


@dataclass(slots=True)
class Counts:
    """What was skipped while reading: lines that are not events, and events without a decision."""

    unreadable: int = 0
    undecided: int = 0


def find(paths: Iterable[str | os.PathLike[str]], audit_id: str) -> RecordedRequest | EndedRequest | None:
    """The request with this id; raises `ConfigurationError` if a file cannot be read.

    Of a request that came to no decision (a sign-in, a token that nobody knows) it is how it ended.
    """
    lowered_id = audit_id.strip().lower()
    request: RecordedRequest | None = None
    ended: EndedRequest | None = None
    for path in paths:
        for line in _lines(path):
            # Parsing every line of a large log would take minutes, and nearly all are about other requests.
            if lowered_id not in line.lower():
                continue
            event = _event(line)
            if event is None or str(event.get("auditID")).lower() != lowered_id:
                continue
            # One request may have several events; the last one has the answer.
            request = decode_request(event) or request
            ended = decode_end(event) or ended
    return request or ended


def read(paths: Iterable[str | os.PathLike[str]], counts: Counts) -> Iterator[RecordedRequest]:
    """Each decided request once; raises `ConfigurationError` if a file cannot be read."""
    ids: set[str] = set()
    for path in paths:
        for line in _lines(path):
            event = _event(line)
            if event is None:
                counts.unreadable += 1
                continue
            if event.get("stage") not in _STAGES or event.get("auditID") in ids:
                continue
            request = decode_request(event)
            if request is None:
                counts.undecided += 1
                continue
            ids.add(request.id)
            yield request


def decode_request(event: Event | None) -> RecordedRequest | None:
    """What *event* records; None if nobody was identified, nothing was decided, or it is no event."""
    if event is None:
        return None
    try:
        # With impersonation, the decision was about what the impersonated user may do.
        who = event.get("impersonatedUser") or event["user"]
        verdict = event["annotations"][DECISION]
        user, info = _user(who), _request(event)
        at = datetime.fromisoformat(event["requestReceivedTimestamp"]).astimezone(UTC)
        reason, scope = (str(event["annotations"].get(key, "")) for key in (REASON, SCOPE))
        audit_id = event["auditID"]
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    if verdict not in (ALLOW, FORBID) or not user.username or not isinstance(audit_id, str):
        return None
    status = event.get("responseStatus") or {}
    is_hidden = verdict == FORBID and isinstance(status, dict) and status.get("code") == 404
    decision = Decision(Verdict.ALLOW if verdict == ALLOW else Verdict.NO_OPINION, reason, is_hidden)
    code = status.get("code") if isinstance(status, dict) else None
    status_code = code if isinstance(code, int) else 0
    return RecordedRequest(audit_id, at, Attributes(user, info), decision, status_code, scope)


def decode_end(event: Event | None) -> EndedRequest | None:
    """How the request of *event* ended, whatever it was; None if it has not, or this is no event."""
    if event is None or event.get("stage") not in (Stage.COMPLETE.value, Stage.PANIC.value):
        return None
    try:
        response, notes = event.get("responseStatus") or {}, event.get("annotations") or {}
        at = datetime.fromisoformat(event["requestReceivedTimestamp"]).astimezone(UTC)
        user, addresses = event.get("user") or {}, event.get("sourceIPs") or [""]
        return EndedRequest(
            str(event["auditID"]),
            at,
            int(response.get("code", 0)),
            str(response.get("message", "")),
            str(event.get("verb", "")).upper(),
            str(event.get("requestURI", "")).partition("?")[0],
            str(addresses[0]),
            str(user.get("username", "") or notes.get("ostiary.dev/claimed-user", "")),
            str(notes.get("ostiary.dev/login", "")),
            str(notes.get("ostiary.dev/provider", "")),
        )
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):
        return None


def with_upstream(record: RecordedRequest, upstreams: Sequence[str]) -> RecordedRequest:
    """*record* with its upstream, which events do not name if there is only one. Our own API has none."""
    info = record.attributes.request
    if info.upstream or len(upstreams) != 1 or info.api_group == OWN_GROUP:
        return record
    request = replace(info, upstream=upstreams[0])
    return replace(record, attributes=replace(record.attributes, request=request))


def _user(value: Event) -> UserInfo:
    extra = value.get("extra") or {}
    return UserInfo(
        str(value.get("username", "")),
        str(value.get("uid", "")),
        tuple(map(str, value.get("groups") or ())),
        tuple(sorted((str(key), tuple(map(str, values))) for key, values in extra.items())),
    )


def _request(event: Event) -> RequestInfo:
    verb, (path, _, query) = str(event["verb"]), str(event["requestURI"]).partition("?")
    object_ref, upstream = event.get("objectRef"), str(event["annotations"].get(UPSTREAM, ""))
    if not object_ref:
        return RequestInfo(verb, verb.upper(), path, upstream=upstream)
    info = RequestInfo(
        verb=verb,
        method=_METHODS.get(verb, "GET"),
        path=path,
        is_resource=True,
        api_group=str(object_ref.get("apiGroup", "")),
        api_version=str(object_ref.get("apiVersion", "")),
        namespace=str(object_ref.get("namespace", "")),
        resource=str(object_ref.get("resource", "")),
        subresource=str(object_ref.get("subresource", "")),
        name=str(object_ref.get("name", "")),
    )
    asked = str(event["annotations"].get(CAPABILITIES, ""))
    capabilities = tuple(filter(None, asked.split(",")))
    return replace(_as_mapped(info, query) or info, upstream=upstream, capabilities=capabilities)


def _as_mapped(info: RequestInfo, query: str) -> RequestInfo | None:
    """The request as it was read from its first line, selectors and all, if that line gives the same."""
    try:
        mapped = request_info.request_info(RequestLine(info.method, info.path, query))
    except ValueError:
        return None
    same = ("verb", "api_group", "namespace", "resource", "subresource", "name")
    return mapped if all(getattr(mapped, key) == getattr(info, key) for key in same) else None


# --- lines ---


def _event(line: str) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and event.get("kind") == "Event" else None


def _lines(path: str | os.PathLike[str]) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as opened:
            yield from (line for line in opened if not line.isspace())
    except OSError as error:
        raise ConfigurationError(
            "the audit log cannot be read", cause=error.strerror, where=os.fspath(path), code="config-unreadable"
        ) from None
