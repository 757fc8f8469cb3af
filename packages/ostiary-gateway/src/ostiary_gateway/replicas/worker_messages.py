"""JSON messages between the workers of one gateway: denials, decisions, ended requests and unsaved revocations.

`worker_ipc` sends them. All workers run the same version, so messages are not validated. Replicas on other machines,
which may run another version, read the same JSON as messages in the token store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import NotRequired, TypedDict, cast

from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary_gateway.audit.ended_requests import EndedRequest
from ostiary_gateway.authorization.denials import Refusal
from ostiary_gateway.authorization.recent_decisions import RecentDecision, RecentDecisions
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind

UNSAVED = "unsaved"
REFUSAL = "refusal"
REFUSALS = "refusals"
ENDED = "ended"
DECISION = "decision"
DECISIONS = "decisions"


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
    """The attributes of a request, as JSON."""

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
    of_kubernetes: bool


class RefusalJson(TypedDict):
    id: str
    user: UserJson
    request: RequestJson
    decision: tuple[str, str, bool]
    at: str
    scope: str


class RecentDecisionJson(RefusalJson):
    seconds: float | None
    actor: str


class DecisionQuestionJson(TypedDict):
    """Query for decisions: those after the given position of each worker, at most `limit` per worker.

    It makes each worker record decisions for another `seconds`.
    """

    after: dict[str, tuple[int, int]]
    limit: int
    seconds: float


class DecisionBatchJson(TypedDict):
    worker: str
    number: int
    left_out: int
    decisions: list[RecentDecisionJson]
    missed: int


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
    # Absent from workers of an earlier version.
    owner: NotRequired[str]


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
        "scope": refusal.scope,
    }


def refusal_from_json(value: RefusalJson) -> Refusal:
    verdict, reason, is_hidden = value["decision"]
    return Refusal(
        value["id"],
        Attributes(_user(value["user"]), _request(value["request"])),
        Decision(Verdict(verdict), reason, is_hidden),
        datetime.fromisoformat(value["at"]),
        # Absent from replicas of versions without scopes.
        value.get("scope", ""),
    )


def decision_json(decision: RecentDecision) -> RecentDecisionJson:
    return {
        **refusal_json(decision.remembered),
        "seconds": decision.seconds,
        "actor": decision.actor,
    }


def decision_from_json(value: RecentDecisionJson) -> RecentDecision:
    refusal = refusal_from_json(value)
    return RecentDecision(
        refusal.id,
        refusal.attributes,
        refusal.decision,
        refusal.at,
        value["seconds"],
        value["actor"],
        refusal.scope,
    )


def batch_json(recent: RecentDecisions, worker: str, question: DecisionQuestionJson) -> DecisionBatchJson:
    """Return the decisions of this *worker* that match *question*, and keep recording for the watcher."""
    recent.watch(question["seconds"])
    batch = recent.after(*question["after"].get(worker, (0, 0)), question["limit"])
    return {
        "worker": worker,
        "number": batch.number,
        "left_out": batch.left_out,
        "decisions": [decision_json(each) for each in batch.decisions],
        "missed": batch.missed,
    }


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
        # Absent from replicas of earlier versions.
        of_kubernetes=value.get("of_kubernetes", False),
    )


def _requirements(value: Sequence[RequirementJson] | None) -> tuple[Requirement, ...] | None:
    if value is None:
        return None
    return tuple(Requirement(each["key"], each["operator"], tuple(each["values"])) for each in value)


def unsaved_json(revocation: Revocation) -> RevocationJson:
    at = None if revocation.at is None else revocation.at.isoformat()
    kind, value, by = revocation.kind.value, revocation.value, revocation.by
    return {"kind": kind, "value": value, "at": at, "by": by, "owner": revocation.owner}


def unsaved_from_json(value: RevocationJson) -> Revocation:
    at = None if value["at"] is None else datetime.fromisoformat(value["at"])
    return Revocation(RevocationKind(value["kind"]), value["value"], at, value["by"], owner=value.get("owner", ""))
