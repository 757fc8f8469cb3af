"""What is searched for, read from the query of a page, and whether something matches it. Pure.

Called by the pages of the administration area, and for the stream of decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import Session, SessionKind
from ostiary.model import Attributes, Decision

REQUEST_FIELDS = ("user", "group", "verb", "resource", "path", "upstream", "outcome", "since", "until")
SESSION_FIELDS = ("user", "group", "kind", "text", "since", "until")
ALLOWED, DENIED = "allowed", "denied"
LONGEST_VALUE = 500


def read_values(request: LoginRequest, fields: tuple[str, ...]) -> dict[str, str]:
    """The fields of a search, as they were typed. Raises `ValueError` for one that is given twice, or too long."""
    values: dict[str, str] = {}
    for name, value in request.query:
        if name not in fields or not value.strip():
            continue
        if name in values or len(value) > LONGEST_VALUE:
            raise ValueError("a field of the search is given twice, or is too long")
        values[name] = value.strip()
    return values


def read_moment(text: str) -> datetime | None:
    """A time as the field of a form has it, in UTC; None if there is none."""
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
        """Whether *moment* lies before it begins."""
        return self.since is not None and moment < self.since


class RequestSearch:
    """Which requests: parts of the user's name, of the resource and of the path; the rest exactly."""

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
    """Which sessions: user, group and kind exactly, by the store; a text in the client, the provider or the name."""

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
