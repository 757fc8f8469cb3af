"""Plans are found by the very token and request, and are bounded."""

from __future__ import annotations

from datetime import UTC, datetime

from ostiary.backend.authenticate.bearer import RememberedToken
from ostiary.backend.plans import LONGEST_TARGET, BackendPlan, BackendPlans
from ostiary.backend.request import BackendRequest
from ostiary.gateway.authorize.ruling import NOTHING_ASKED
from ostiary.model import RequestInfo, UserInfo
from ostiary.wire.ostiary_dev.token_introspection import TokenDescription

PLAN = BackendPlan((RequestInfo("get", "GET", "/x"),), NOTHING_ASKED, None)


def token() -> RememberedToken:
    return RememberedToken(b"d" * 32, TokenDescription(UserInfo("ann"), datetime(2999, 1, 1, tzinfo=UTC), "id", "s"))


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
