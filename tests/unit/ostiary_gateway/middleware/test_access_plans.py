"""Plans are found by the very token and request, and are bounded."""

from __future__ import annotations

from datetime import UTC, datetime

from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.authorization.cached_decision import NOTHING_ASKED
from ostiary_gateway.middleware.access import LONGEST_TARGET, BackendPlan, BackendPlans
from ostiary_gateway.middleware.bearer import CachedBearer
from ostiary_gateway.middleware.request import BackendRequest
from ostiary_gateway.wire.token_introspection import TokenDescription

PLAN = BackendPlan((RequestInfo("get", "GET", "/x"),), NOTHING_ASKED, None)


def token() -> CachedBearer:
    return CachedBearer(b"d" * 32, TokenDescription(UserInfo("ann"), datetime(2999, 1, 1, tzinfo=UTC), "id", "s"))


def test_a_plan_is_for_one_token_and_one_request() -> None:
    """T1: the key holds everything that the decision depends on."""
    plans, ann = BackendPlans(), token()
    plans.keep(ann, BackendRequest("GET", b"/x"), PLAN)
    assert plans.find(ann, BackendRequest("GET", b"/x")) is PLAN
    others = [
        BackendRequest("HEAD", b"/x"),
        BackendRequest("GET", b"/x?y"),
        BackendRequest("GET", b"/x", upgrade="websocket"),
    ]
    assert [plans.find(ann, other) for other in others] == [None, None, None]
    assert plans.find(token(), BackendRequest("GET", b"/x")) is None


def test_long_targets_are_decided_on_each_time() -> None:
    """T2."""
    plans, ann = BackendPlans(), token()
    long = BackendRequest("GET", b"/" + b"x" * LONGEST_TARGET)
    plans.keep(ann, long, PLAN)
    assert plans.find(ann, long) is None
