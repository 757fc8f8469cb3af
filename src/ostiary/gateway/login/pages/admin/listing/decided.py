"""Requests that were decided on, as rows of tables and events of streams. Pure.

Called by the pages of denied requests and of decisions, and by the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ostiary.gateway.authorize.recent_decisions import RecentDecision
from ostiary.gateway.authorize.refusals import Refusal
from ostiary.gateway.login.pages.admin.listing.texts import shown
from ostiary.model import Attributes, Decision, RequestInfo

# Up to how many seconds a class of durations goes, and what it is called.
_DURATIONS = ((0.01, "< 10 ms"), (0.1, "< 100 ms"), (1.0, "< 1 s"), (10.0, "< 10 s"))
LONGEST = "≥ 10 s"


@dataclass(frozen=True, slots=True)
class DecidedRequest:
    """One that was refused, whenever that was, or any while somebody watches. `took` is a class of durations."""

    id: str
    attributes: Attributes
    decision: Decision
    at: datetime
    actor: str = ""
    seconds: float | None = None

    @property
    def outcome(self) -> str:
        """Of the whole chain, where no opinion means denied."""
        return "allowed" if self.decision.allowed else "hidden" if self.decision.hidden else "denied"

    @property
    def took(self) -> str:
        """Empty for what was refused, and for a stream."""
        if self.seconds is None:
            return ""
        return next((name for most, name in _DURATIONS if self.seconds < most), LONGEST)

    @property
    def is_stream(self) -> bool:
        return self.decision.allowed and self.seconds is None

    @property
    def place(self) -> str:
        """Its place among all of them, as text that sorts as they do."""
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
    """The page behind the place *after*, and where the next one begins, empty if there is none.

    Places stay what they are, so whatever is new comes before the first page, or behind the last, and never between.
    """
    ordered = sorted(requests, key=lambda request: request.place, reverse=not oldest_first)
    if after:
        ordered = [each for each in ordered if (each.place > after) == oldest_first and each.place != after]
    return ordered[:limit], ordered[limit - 1].place if len(ordered) > limit else ""


def describe(info: RequestInfo) -> str:
    """What a request asks for, in a line."""
    if not info.is_resource:
        return shown(f"{info.verb} {info.path}")
    resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
    kind = f"{resource}.{info.api_group}" if info.api_group else resource
    name = f" {info.name}" if info.name else ""
    scope = f" in {info.namespace}" if info.namespace else ""
    return shown(f"{info.verb} {kind}{name}{scope}")
