"""What workers tell each other arrives as it was."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest

from ostiary.gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.authorize.refusals import Refusal
from ostiary.gateway.siblings.messages import (
    ENDED,
    REFUSAL,
    REFUSALS,
    EveryEndedRequest,
    EveryRefusal,
    ended_from_json,
    ended_json,
    refusal_from_json,
    refusal_json,
    unsaved_from_json,
    unsaved_json,
)
from ostiary.interfaces.token_store import Revocation, RevocationKind
from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary.testing import FakeClock

AT = datetime(2026, 11, 15, 10, 0, tzinfo=UTC)
ANN = UserInfo("ann", "7", ("dev", "ops"), (("team", ("x", "y")),))
T = TypeVar("T")


def sent(value: T) -> T:
    """*value* after its way as JSON."""
    arrived: T = json.loads(json.dumps(value))
    return arrived


def refusal(decision_id: str, request: RequestInfo, at: datetime = AT) -> Refusal:
    return Refusal(decision_id, Attributes(ANN, request), Decision(Verdict.DENY, "why", hidden=True), at)


@pytest.mark.parametrize(
    "request_info",
    [
        RequestInfo("get", "GET", "/x"),
        RequestInfo(
            "list",
            "GET",
            "/api/v1/pods",
            True,
            modifier="watch",
            api_group="apps",
            api_version="v1",
            namespace="n",
            resource="pods",
            subresource="log",
            name="web",
            field_selector=(Requirement("a", "=", ("b",)),),
            label_selector=(Requirement("c", "exists"),),
            capabilities=("x", "y"),
            upstream="cluster",
        ),
        RequestInfo("list", "GET", "/x", True, field_selector=(), label_selector=()),
    ],
)
def test_a_refusal_goes_from_worker_to_worker_as_it_is(request_info: RequestInfo) -> None:
    assert refusal_from_json(sent(refusal_json(refusal("id", request_info)))) == refusal("id", request_info)


def test_the_end_of_a_request_goes_from_worker_to_worker_as_it_is() -> None:
    request = EndedRequest("id", AT, 401, "why", "GET", "/x", "192.0.2.1", "ann", "refused", "staff")
    assert ended_from_json(sent(ended_json(request))) == request


@pytest.mark.parametrize("at", [None, AT])
@pytest.mark.parametrize("kind", list(RevocationKind))
def test_a_revocation_goes_from_worker_to_worker_as_it_is(kind: RevocationKind, at: datetime | None) -> None:
    revocation = Revocation(kind, "value", at, "an operator")
    assert unsaved_from_json(sent(unsaved_json(revocation))) == revocation


class Siblings:
    """Answer what they are told to, and keep what they were asked."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.questions: list[tuple[str, object]] = []

    async def ask(self, question: str, data: object) -> list[object]:
        self.questions.append((question, data))
        return self.answers

    def tell(self, what: str, data: object) -> None: ...


GET = RequestInfo("get", "GET", "/x")


async def test_a_refusal_is_recalled_here_before_anybody_else_is_asked() -> None:
    authorizer, siblings = Authorizer([]), Siblings()
    decision_id = authorizer.record(Attributes(ANN, GET), Decision(Verdict.DENY))
    every = EveryRefusal(authorizer, lambda: siblings)
    found = await every.recall(decision_id)
    assert found is not None
    assert siblings.questions == []
    assert await every.recall("another") is None
    siblings.answers = [sent(refusal_json(refusal("another", GET)))]
    assert await every.recall("another") == refusal("another", GET)
    assert siblings.questions == [(REFUSAL, "another")] * 2


async def test_the_latest_refusals_of_all_workers_come_newest_first() -> None:
    clock = FakeClock()
    authorizer = Authorizer([], clock=clock)
    ours = authorizer.record(Attributes(ANN, GET), Decision(Verdict.DENY))
    now = clock.now()
    theirs = [refusal(name, GET, now + timedelta(seconds=after)) for name, after in (("new", 1), ("old", -1))]
    siblings = Siblings([sent(refusal_json(theirs[0]))], [sent(refusal_json(theirs[1]))])
    latest = await EveryRefusal(authorizer, lambda: siblings).recent(2)
    assert [each.id for each in latest] == ["new", ours]
    assert siblings.questions == [(REFUSALS, 2)]


async def test_how_a_request_ended_is_recalled_here_before_anybody_else_is_asked() -> None:
    clock = FakeClock()
    ended, siblings = EndedRequests(clock=clock), Siblings()
    ended.record(EndedRequest("ours", clock.now(), 502))
    every = EveryEndedRequest(ended, lambda: siblings)
    assert await every.recall("ours") == EndedRequest("ours", clock.now(), 502)
    assert siblings.questions == []
    assert await every.recall("theirs") is None
    siblings.answers = [sent(ended_json(EndedRequest("theirs", AT, 504)))]
    assert await every.recall("theirs") == EndedRequest("theirs", AT, 504)
    assert siblings.questions == [(ENDED, "theirs")] * 2
