"""What workers of one gateway ask and tell each other, as JSON: refusals, how requests ended, and revocations that were
not written down.

Called by the app, which answers, and by those who explain refusals, who ask. The channel is `gateway.channel`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ostiary.gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.authorize.refusals import Refusal
from ostiary.gateway.siblings.channel import NoSiblings, Siblings
from ostiary.interfaces.token_store import Revocation, RevocationKind
from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict

UNSAVED = "unsaved"
REFUSAL = "refusal"
REFUSALS = "refusals"
ENDED = "ended"


class EveryRefusal:
    """The refusals of all workers: whichever of them is asked knows them all."""

    def __init__(self, authorizer: Authorizer, siblings: Callable[[], Siblings] = NoSiblings) -> None:
        self._authorizer = authorizer
        self._siblings = siblings

    async def recall(self, decision_id: str) -> Refusal | None:
        refusal = self._authorizer.recall(decision_id)
        if refusal is not None:
            return refusal
        answers = await self._siblings().ask(REFUSAL, decision_id)
        return refusal_from_json(answers[0]) if answers else None

    async def recent(self, limit: int) -> list[Refusal]:
        """The latest ones, the newest first."""
        ours = self._authorizer.recent_refusals(limit)
        theirs = [refusal_from_json(each) for answer in await self._siblings().ask(REFUSALS, limit) for each in answer]
        return heapq.nlargest(limit, [*ours, *theirs], key=lambda refusal: refusal.at)


class EveryEndedRequest:
    """How requests ended at all workers: whichever of them is asked knows them all."""

    def __init__(self, ended: EndedRequests, siblings: Callable[[], Siblings] = NoSiblings) -> None:
        self._ended = ended
        self._siblings = siblings

    async def recall(self, request_id: str) -> EndedRequest | None:
        request = self._ended.recall(request_id)
        if request is not None:
            return request
        answers = await self._siblings().ask(ENDED, request_id)
        return ended_from_json(answers[0]) if answers else None


def ended_json(request: EndedRequest) -> dict[str, Any]:
    return {**asdict(request), "at": request.at.isoformat()}


def ended_from_json(value: Mapping[str, Any]) -> EndedRequest:
    return EndedRequest(**{**value, "at": datetime.fromisoformat(value["at"])})


def refusal_json(refusal: Refusal) -> dict[str, Any]:
    decision = refusal.decision
    return {
        "id": refusal.id,
        "user": asdict(refusal.attributes.user),
        "request": asdict(refusal.attributes.request),
        "decision": [decision.verdict.value, decision.reason, decision.hidden],
        "at": refusal.at.isoformat(),
    }


def refusal_from_json(value: Mapping[str, Any]) -> Refusal:
    verdict, reason, hidden = value["decision"]
    return Refusal(
        value["id"],
        Attributes(_user(value["user"]), _request(value["request"])),
        Decision(Verdict(verdict), reason, hidden),
        datetime.fromisoformat(value["at"]),
    )


def _user(value: Mapping[str, Any]) -> UserInfo:
    extra = tuple((key, tuple(values)) for key, values in value["extra"])
    return UserInfo(value["username"], value["uid"], tuple(value["groups"]), extra)


def _request(value: Mapping[str, Any]) -> RequestInfo:
    selectors = {key: _requirements(value[key]) for key in ("field_selector", "label_selector")}
    return RequestInfo(**{**value, **selectors, "capabilities": tuple(value["capabilities"])})


def _requirements(value: Sequence[Mapping[str, Any]] | None) -> tuple[Requirement, ...] | None:
    if value is None:
        return None
    return tuple(Requirement(each["key"], each["operator"], tuple(each["values"])) for each in value)


def unsaved_json(revocation: Revocation) -> dict[str, Any]:
    at = None if revocation.at is None else revocation.at.isoformat()
    return {"kind": revocation.kind.value, "value": revocation.value, "at": at, "by": revocation.by}


def unsaved_from_json(value: Mapping[str, Any]) -> Revocation:
    at = None if value["at"] is None else datetime.fromisoformat(value["at"])
    return Revocation(RevocationKind(value["kind"]), value["value"], at, value["by"])
