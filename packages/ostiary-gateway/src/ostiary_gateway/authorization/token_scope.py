"""Check the scope of a token. A scoped token needs both the scope and the policy to allow a request."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.scopes import BEYOND_SCOPE, Delegation, explain_miss, parse_scope, rule_for
from ostiary.errors import ScopeError
from ostiary.model import Decision, RequestInfo, Verdict
from ostiary_gateway.authorization.cached_decision import OutOfScope
from ostiary_gateway.authorization.chain import ChainExplanation, Step
from ostiary_gateway.authorization.denials import Refusal
from ostiary_gateway.interfaces.authorization import Explanation

STEP = "token scope"


def refusal_by_scope(
    delegation: Delegation | None, required: Sequence[RequestInfo], *, generation: int
) -> OutOfScope | None:
    """Return the denial of the first of *required* that is out of scope; None if all are within.

    It is valid as long as the token. *generation* is that of the policy in force.
    """
    if delegation is None:
        return None
    for request in required:
        layer = delegation.layer_that_refuses(request)
        if layer is not None:
            scope = str(layer)
            reason = f"{BEYOND_SCOPE}: {scope or 'nothing'}"
            if request is not required[0]:
                reason += f" (the request needs this as well: {rule_for(request)})"
            return OutOfScope(Verdict.DENY, reason, False, float("inf"), generation, scope)
    return None


def explain_with_scope(now: ChainExplanation, refusal: Refusal) -> ChainExplanation:
    """Prepend the step of the token's scope to the policy's explanation *now*, if the scope caused the denial."""
    if not refusal.decision.reason.startswith(BEYOND_SCOPE):
        return now
    return explain_refusal_by_scope(now, refusal.decision, refusal.scope, refusal.attributes.request)


def explain_refusal_by_scope(
    now: ChainExplanation, refused: Decision, scope: str, request: RequestInfo
) -> ChainExplanation:
    """Prepend the step of the scope that denied *request* to *now*."""
    decision = Decision(Verdict.DENY, refused.reason)
    try:
        miss = explain_miss(parse_scope(scope), request)
    except ScopeError:
        explanation = Explanation(decision)
    else:
        explanation = Explanation(decision, miss.closest, miss.failed, miss.remedy)
    return ChainExplanation(decision, (Step(STEP, explanation), *now.steps))
