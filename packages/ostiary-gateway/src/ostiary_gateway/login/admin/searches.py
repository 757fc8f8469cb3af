"""Search parameters of the administration area, and the requests and sessions that match them. No side effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ostiary.model import Attributes, Decision, RequestInfo
from ostiary_gateway.authorization.denials import Refusal
from ostiary_gateway.authorization.recent_decisions import RecentDecision
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.token_store import Session, SessionKind
from ostiary_gateway.login.admin.tables import shown

REQUEST_FIELDS = ("user", "group", "verb", "resource", "path", "upstream", "outcome", "since", "until")
SESSION_FIELDS = ("user", "group", "kind", "text", "since", "until")
ALLOWED, DENIED = "allowed", "denied"
LONGEST_VALUE = 500


def read_values(request: LoginRequest, fields: tuple[str, ...]) -> dict[str, str]:
    """Return the search fields as typed. Raises `ValueError` for a repeated or overlong one."""
    values: dict[str, str] = {}
    for name, value in request.query:
        if name not in fields or not value.strip():
            continue
        if name in values or len(value) > LONGEST_VALUE:
            raise ValueError("a field of the search is given twice, or is too long")
        values[name] = value.strip()
    return values


def read_moment(text: str) -> datetime | None:
    """Parse a time from a form field, in UTC if it has no offset. None if the field is empty."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("this is not a time: write it as 2030-01-31T14:00") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


@dataclass(frozen=True, slots=True)
class TimeSpan:
    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def of(cls, values: Mapping[str, str]) -> TimeSpan:
        return cls(read_moment(values.get("since", "")), read_moment(values.get("until", "")))

    def contains(self, moment: datetime) -> bool:
        return not self.is_before(moment) and (self.until is None or moment <= self.until)

    def is_before(self, moment: datetime) -> bool:
        """Report whether *moment* is before the start."""
        return self.since is not None and moment < self.since


class RequestSearch:
    """Filter of requests: user, resource and path match by substring, the other fields exactly."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Raises `ValueError`."""
        self.values = dict(values)
        self._span = TimeSpan.of(values)
        self._outcome = values.get("outcome", "")
        if self._outcome not in ("", ALLOWED, DENIED):
            raise ValueError("the decision to search for is allowed or denied")
        self._exact = {name: values[name] for name in ("verb", "upstream") if name in values}
        self._parts = {name: values[name].casefold() for name in ("user", "resource", "path") if name in values}
        self._group = values.get("group")

    def matches(self, attributes: Attributes, decision: Decision, at: datetime) -> bool:
        user, info = attributes.user, attributes.request
        if self._outcome and decision.allowed != (self._outcome == ALLOWED):
            return False
        if self._group is not None and self._group not in user.groups:
            return False
        texts = {"user": user.username, "resource": f"{info.resource}/{info.subresource}", "path": info.path}
        return (
            all(part in texts[name].casefold() for name, part in self._parts.items())
            and all(getattr(info, name) == value for name, value in self._exact.items())
            and self._span.contains(at)
        )


class SessionSearch:
    """Filter of sessions: user, group and kind exactly, by the store; text in client, provider, name or id."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Raises `ValueError`."""
        self.values = dict(values)
        self.span = TimeSpan.of(values)
        self.username, self.group = values.get("user"), values.get("group")
        try:
            self.kind = SessionKind(values["kind"]) if "kind" in values else None
        except ValueError:
            raise ValueError("there is no such kind of session") from None
        self._text = values.get("text", "").casefold()

    def matches(self, session: Session) -> bool:
        texts = (session.client, session.provider, session.name, session.id)
        return self.span.contains(session.created_at) and (
            not self._text or any(self._text in text.casefold() for text in texts)
        )


# Upper limit in seconds and label of each duration class.
_DURATIONS = ((0.01, "< 10 ms"), (0.1, "< 100 ms"), (1.0, "< 1 s"), (10.0, "< 10 s"))
LONGEST = "≥ 10 s"


@dataclass(frozen=True, slots=True)
class DecidedRequest:
    """A request with its decision: any denied request, or any request while a page watches."""

    id: str
    attributes: Attributes
    decision: Decision
    at: datetime
    actor: str = ""
    seconds: float | None = None

    @property
    def outcome(self) -> str:
        """The outcome of the whole chain, where no opinion means denied."""
        return "allowed" if self.decision.allowed else "hidden" if self.decision.hidden else "denied"

    @property
    def took(self) -> str:
        """The duration class; empty for denied requests and streams."""
        if self.seconds is None:
            return ""
        return next((name for most, name in _DURATIONS if self.seconds < most), LONGEST)

    @property
    def is_stream(self) -> bool:
        return self.decision.allowed and self.seconds is None

    @property
    def place(self) -> str:
        """The cursor of this request: text that sorts by time."""
        return f"{self.at.astimezone(UTC).strftime('%Y%m%d%H%M%S%f')}-{self.id}"


def of_refusal(refusal: Refusal) -> DecidedRequest:
    return DecidedRequest(refusal.id, refusal.attributes, refusal.decision, refusal.at)


def of_decision(decision: RecentDecision) -> DecidedRequest:
    return DecidedRequest(
        decision.id,
        decision.attributes,
        decision.decision,
        decision.at,
        decision.actor,
        decision.seconds,
    )


def page_of(
    requests: Sequence[DecidedRequest], *, after: str, limit: int, oldest_first: bool = False
) -> tuple[Sequence[DecidedRequest], str]:
    """Return the page after the cursor *after*, and the cursor of the next page, empty if there is none.

    Cursors are stable: new requests appear before the first page or after the last one, never in between.
    """
    ordered = sorted(requests, key=lambda request: request.place, reverse=not oldest_first)
    if after:
        ordered = [each for each in ordered if (each.place > after) == oldest_first and each.place != after]
    return ordered[:limit], ordered[limit - 1].place if len(ordered) > limit else ""


def describe(info: RequestInfo) -> str:
    """Describe a request in one line."""
    if not info.is_resource:
        return shown(f"{info.verb} {info.path}")
    resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
    kind = f"{resource}.{info.api_group}" if info.api_group else resource
    name = f" {info.name}" if info.name else ""
    scope = f" in {info.namespace}" if info.namespace else ""
    return shown(f"{info.verb} {kind}{name}{scope}")
