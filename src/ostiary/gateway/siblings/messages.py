"""What workers of one gateway ask and tell each other, as JSON: refusals, how requests ended, and revocations that were
not written down.

Called by the app, which answers, and by those who explain refusals, who ask. They are sent by `siblings.channel`. All
workers run the same version, so a message is taken for what its name says.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TypedDict, cast

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


class UserJson(TypedDict):
    username: str
    uid: str
    groups: list[str]
    extra: list[tuple[str, list[str]]]


class RequirementJson(TypedDict):
    key: str
    operator: str
    values: list[str]


class RequestJson(TypedDict):
    verb: str
    method: str
    path: str
    is_resource: bool
    modifier: str
    api_group: str
    api_version: str
    namespace: str
    resource: str
    subresource: str
    name: str
    field_selector: list[RequirementJson] | None
    label_selector: list[RequirementJson] | None
    capabilities: list[str]
    upstream: str


class RefusalJson(TypedDict):
    id: str
    user: UserJson
    request: RequestJson
    decision: tuple[str, str, bool]
    at: str


class EndedRequestJson(TypedDict):
    id: str
    at: str
    status: int
    reason: str
    method: str
    path: str
    address: str
    username: str
    login: str
    provider: str


class RevocationJson(TypedDict):
    kind: str
    value: str
    at: str | None
    by: str


class EveryRefusal:
    """The refusals of all workers. The worker that is asked asks the others."""

    def __init__(self, authorizer: Authorizer, siblings: Callable[[], Siblings] = NoSiblings) -> None:
        self._authorizer = authorizer
        self._siblings = siblings

    async def recall(self, decision_id: str) -> Refusal | None:
        refusal = self._authorizer.recall(decision_id)
        if refusal is not None:
            return refusal
        answers = await self._siblings().ask(REFUSAL, decision_id)
        return refusal_from_json(cast(RefusalJson, answers[0])) if answers else None

    async def recent(self, limit: int) -> list[Refusal]:
        """The latest ones, the newest first."""
        ours = self._authorizer.recent_refusals(limit)
        answers = cast(list[list[RefusalJson]], await self._siblings().ask(REFUSALS, limit))
        theirs = [refusal_from_json(refusal) for answer in answers for refusal in answer]
        return heapq.nlargest(limit, [*ours, *theirs], key=lambda refusal: refusal.at)


class EveryEndedRequest:
    """How requests ended at all workers. The worker that is asked asks the others."""

    def __init__(self, ended: EndedRequests, siblings: Callable[[], Siblings] = NoSiblings) -> None:
        self._ended = ended
        self._siblings = siblings

    async def recall(self, request_id: str) -> EndedRequest | None:
        request = self._ended.recall(request_id)
        if request is not None:
            return request
        answers = await self._siblings().ask(ENDED, request_id)
        return ended_from_json(cast(EndedRequestJson, answers[0])) if answers else None


def ended_json(request: EndedRequest) -> EndedRequestJson:
    return cast(EndedRequestJson, {**asdict(request), "at": request.at.isoformat()})


def ended_from_json(value: EndedRequestJson) -> EndedRequest:
    return EndedRequest(
        value["id"],
        datetime.fromisoformat(value["at"]),
        value["status"],
        value["reason"],
        value["method"],
        value["path"],
        value["address"],
        value["username"],
        value["login"],
        value["provider"],
    )


def refusal_json(refusal: Refusal) -> RefusalJson:
    decision = refusal.decision
    return {
        "id": refusal.id,
        "user": cast(UserJson, asdict(refusal.attributes.user)),
        "request": cast(RequestJson, asdict(refusal.attributes.request)),
        "decision": (decision.verdict.value, decision.reason, decision.hidden),
        "at": refusal.at.isoformat(),
    }


def refusal_from_json(value: RefusalJson) -> Refusal:
    verdict, reason, is_hidden = value["decision"]
    return Refusal(
        value["id"],
        Attributes(_user(value["user"]), _request(value["request"])),
        Decision(Verdict(verdict), reason, is_hidden),
        datetime.fromisoformat(value["at"]),
    )


def _user(value: UserJson) -> UserInfo:
    extra = tuple((key, tuple(values)) for key, values in value["extra"])
    return UserInfo(value["username"], value["uid"], tuple(value["groups"]), extra)


def _request(value: RequestJson) -> RequestInfo:
    return RequestInfo(
        verb=value["verb"],
        method=value["method"],
        path=value["path"],
        is_resource=value["is_resource"],
        modifier=value["modifier"],
        api_group=value["api_group"],
        api_version=value["api_version"],
        namespace=value["namespace"],
        resource=value["resource"],
        subresource=value["subresource"],
        name=value["name"],
        field_selector=_requirements(value["field_selector"]),
        label_selector=_requirements(value["label_selector"]),
        capabilities=tuple(value["capabilities"]),
        upstream=value["upstream"],
    )


def _requirements(value: Sequence[RequirementJson] | None) -> tuple[Requirement, ...] | None:
    if value is None:
        return None
    return tuple(Requirement(each["key"], each["operator"], tuple(each["values"])) for each in value)


def unsaved_json(revocation: Revocation) -> RevocationJson:
    at = None if revocation.at is None else revocation.at.isoformat()
    return {"kind": revocation.kind.value, "value": revocation.value, "at": at, "by": revocation.by}


def unsaved_from_json(value: RevocationJson) -> Revocation:
    at = None if value["at"] is None else datetime.fromisoformat(value["at"])
    return Revocation(RevocationKind(value["kind"]), value["value"], at, value["by"])
