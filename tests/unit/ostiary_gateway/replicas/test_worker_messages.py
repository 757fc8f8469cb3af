"""What workers tell each other arrives as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar, cast

import pytest

from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary_gateway.audit.ended_requests import EndedRequest
from ostiary_gateway.authorization.denials import Refusal
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.replicas.worker_messages import (
    RefusalJson,
    ended_from_json,
    ended_json,
    refusal_from_json,
    refusal_json,
    unsaved_from_json,
    unsaved_json,
)

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


def test_the_scope_of_a_token_goes_with_what_it_refused() -> None:
    refused = replace(refusal("id", RequestInfo("get", "GET", "/x")), scope="get pods -n shop")
    assert refusal_from_json(sent(refusal_json(refused))) == refused


def test_a_refusal_of_a_replica_that_knows_no_scopes_has_none() -> None:
    told: dict[str, object] = {**refusal_json(refusal("id", RequestInfo("get", "GET", "/x")))}
    del told["scope"]
    assert refusal_from_json(cast(RefusalJson, sent(told))).scope == ""


def test_the_end_of_a_request_goes_from_worker_to_worker_as_it_is() -> None:
    request = EndedRequest("id", AT, 401, "why", "GET", "/x", "192.0.2.1", "ann", "refused", "staff")
    assert ended_from_json(sent(ended_json(request))) == request


def test_a_revocation_goes_from_worker_to_worker_as_it_is(subtests: pytest.Subtests) -> None:
    cases: list[datetime | None] = [None, AT]
    for at in cases:
        for kind in list(RevocationKind):
            with subtests.test(at=at, kind=kind):
                revocation = Revocation(kind, "value", at, "an operator", owner="ann")
                assert unsaved_from_json(sent(unsaved_json(revocation))) == revocation
