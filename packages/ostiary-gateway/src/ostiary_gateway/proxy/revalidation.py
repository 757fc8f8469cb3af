"""Revalidate the authorization of a request after it has waited: the client controls how long a wait lasts."""

from __future__ import annotations

from ostiary.errors import ProviderError
from ostiary_gateway.authorization.cached_decision import CachedDecision
from ostiary_gateway.proxy.authorizer import RequestAuthorizer
from ostiary_gateway.proxy.context import RequestAttributes, RequestContext, RequestPlan
from ostiary_gateway.proxy.plan_cache import Planner
from ostiary_gateway.proxy.responses import Responses


class RecheckAfterWait:
    """Revalidates requests of one engine after a wait for a permit or a body, before they have an effect."""

    def __init__(self, judge: RequestAuthorizer, planner: Planner, answers: Responses) -> None:
        self._judge = judge
        self._planner = planner
        self._answers = answers

    async def is_still_allowed(self, ctx: RequestContext) -> bool:
        """Return whether the request is still allowed. If not, send the response and release the permit."""
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
        """Return the current decision; None if the configuration would not forward the request.

        Raises `ProviderError`.
        """
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
