"""Checks once more, after a wait, that a request is still allowed: a client can make a wait as long as it likes.

Called by the engine after a wait for a seat or for a body, before anything is done for the request.
"""

from __future__ import annotations

from ostiary.errors import ProviderError
from ostiary_gateway.authorization.cached_decision import CachedDecision
from ostiary_gateway.proxy.authorizer import RequestAuthorizer
from ostiary_gateway.proxy.context import RequestAttributes, RequestContext, RequestPlan
from ostiary_gateway.proxy.plan_cache import Planner
from ostiary_gateway.proxy.responses import Responses


class RecheckAfterWait:
    """For the requests of one engine."""

    def __init__(self, judge: RequestAuthorizer, planner: Planner, answers: Responses) -> None:
        self._judge = judge
        self._planner = planner
        self._answers = answers

    async def is_still_allowed(self, ctx: RequestContext) -> bool:
        """Whether the decision still holds. If it does not, the client is answered and the place given back."""
        plan = ctx.plan
        try:
            ruling = await self._ruling_now(ctx) if plan.ruling.allowed else plan.ruling
        except ProviderError as error:
            ctx.release()
            self._answers.send_undecided(ctx, plan.user, plan.info, error, plan.delegation)
            return False
        if ctx.token.revoked:
            ctx.release()
            self._answers.send_unauthorized(ctx, attempted=True)
        elif ruling is None:
            ctx.release()
            self._answers.send_no_route(ctx)
        elif plan.ruling.allowed and not ruling.allowed:
            ctx.release()
            self._answers.send_refusal(ctx, self._refused_plan(ctx, ruling))
        else:
            return True
        return False

    async def _ruling_now(self, ctx: RequestContext) -> CachedDecision | None:
        """None if the configuration in force would not forward the request; raises `ProviderError`."""
        plan = ctx.plan
        if self._judge.is_valid(plan.ruling):
            return plan.ruling
        required = self._judge.required_now(plan, ctx)
        return None if required is None else await self._judge.authorize_plan(plan, required)

    def _refused_plan(self, ctx: RequestContext, ruling: CachedDecision) -> RequestPlan:
        plan, request = ctx.plan, ctx.exchange.request
        question = RequestAttributes(
            plan.info, plan.required, request.target, plan.upstream, plan.handler, stream=plan.stream
        )
        return self._planner.make(request, question, ruling, plan.user, actor=plan.actor, delegation=plan.delegation)
