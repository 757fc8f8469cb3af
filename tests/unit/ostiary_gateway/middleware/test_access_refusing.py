"""The answers are the gateway's, and tell nothing of the cause."""

from __future__ import annotations

import json

import pytest

from ostiary.errors import AccessRefused
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.cached_decision import OutOfScope
from ostiary_gateway.middleware import access as refusing

INFO = RequestInfo("get", "GET", "/v1/shop/carts/c1", True, namespace="shop", resource="carts", name="c1")
ASKED = Attributes(UserInfo("ann"), INFO)
CANARY = "canary-cause"


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (refusing.unauthorized("id", attempted=True), 401),
        (refusing.forbidden("id", ASKED, Decision(Verdict.DENY, CANARY)), 403),
        (refusing.forbidden("id", ASKED, Decision(Verdict.NO_OPINION, CANARY, hidden=True)), 404),
        (refusing.unavailable("id", CANARY), 503),
        (refusing.undecided("id", CANARY), 500),
    ],
)
def test_the_caller_learns_the_status_and_the_operator_the_cause(refusal: AccessRefused, status: int) -> None:
    """S51, S52, S53."""
    assert refusal.status == status
    assert json.loads(refusal.body)["code"] == status
    assert CANARY.encode() not in refusal.body
    assert dict(refusal.headers)["Audit-Id"] == "id"
    assert refusal.response == (refusal.body, status, list(refusal.headers))


def test_a_hidden_refusal_and_a_missing_object_are_the_same_bytes() -> None:
    """S55."""
    hidden = refusing.forbidden("id", ASKED, Decision(Verdict.NO_OPINION, hidden=True))
    missing = refusing.missing("id", INFO)
    assert (hidden.body, hidden.headers) == (missing.body, missing.headers)


def test_whoever_holds_a_token_is_told_its_scope() -> None:
    beyond = OutOfScope(Verdict.DENY, "beyond this token's scope: get pods", scope="get pods")
    assert b"beyond this token's scope: get pods" in refusing.forbidden("id", ASKED, beyond).body
