"""The refusal of what a token is not for, and its explanation."""

from __future__ import annotations

from datetime import UTC, datetime

from ostiary.core.scopes import NOTHING, narrow, parse_scope
from ostiary.model import Decision, Verdict
from ostiary_gateway.authorization.chain import ChainExplanation, Step
from ostiary_gateway.authorization.denials import Refusal
from ostiary_gateway.authorization.token_scope import STEP, explain_with_scope, refusal_by_scope
from ostiary_gateway.interfaces.authorization import Explanation
from tests.unit.ostiary.core.scopes import asked

READS = narrow(None, parse_scope("get,list pods -n shop"))
LIST, DELETE = asked("list", "pods", "shop"), asked("delete", "pods", "shop")
POLICY = ChainExplanation(
    Decision(Verdict.ALLOW), (Step("policy", Explanation(Decision(Verdict.ALLOW, "they may"))),), ""
)


def test_a_token_that_has_all_of_its_owner_is_refused_nothing() -> None:
    assert refusal_by_scope(None, (DELETE.request,), generation=1) is None


def test_a_refusal_names_the_scope_is_never_hidden_and_holds() -> None:
    refusal = refusal_by_scope(READS, (DELETE.request,), generation=7)
    assert refusal is not None
    assert (refusal.verdict, refusal.hidden, refusal.generation) == (Verdict.DENY, False, 7)
    assert refusal.reason == "beyond this token's scope: get,list pods -n shop"
    assert refusal.until == float("inf")


def test_everything_that_is_required_must_be_in_the_scope() -> None:
    assert refusal_by_scope(READS, (LIST.request,), generation=1) is None
    refusal = refusal_by_scope(READS, (LIST.request, DELETE.request), generation=1)
    assert refusal is not None
    assert refusal.reason.endswith("(the request needs this as well: delete pods -n shop --upstream main)")


def test_a_scope_that_could_not_be_read_allows_nothing_and_says_so() -> None:
    refusal = refusal_by_scope(NOTHING, (LIST.request,), generation=1)
    assert refusal is not None
    assert refusal.reason == "beyond this token's scope: nothing"


def refused(reason: str, scope: str) -> Refusal:
    return Refusal("id", DELETE, Decision(Verdict.DENY, reason), datetime(2026, 1, 1, tzinfo=UTC), scope)


def test_an_explanation_begins_with_the_scope_and_goes_on_with_the_policy() -> None:
    explanation = explain_with_scope(POLICY, refused("beyond this token's scope: get pods -n shop", "get pods -n shop"))
    assert explanation.decision is not None
    assert not explanation.decision.allowed
    scope, policy = explanation.steps
    assert scope.name == STEP
    assert scope.explanation is not None
    assert (scope.explanation.closest, scope.explanation.failed) == ("get pods -n shop", "verb")
    assert policy == POLICY.steps[0]


def test_what_the_policy_refused_is_explained_by_the_policy_alone() -> None:
    assert explain_with_scope(POLICY, refused("no rule allows it", "")) is POLICY


def test_a_scope_that_another_version_wrote_does_not_stop_the_explanation() -> None:
    explanation = explain_with_scope(POLICY, refused("beyond this token's scope: ???", "???"))
    assert explanation.steps[0].explanation == Explanation(Decision(Verdict.DENY, "beyond this token's scope: ???"))
