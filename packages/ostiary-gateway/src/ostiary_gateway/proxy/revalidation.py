"""Checks once more, after a wait, that a request is still allowed: a client can make a wait as long as it likes.

Called by the engine after a wait for a seat or for a body, before anything is done for the request.
"""

from __future__ import annotations

from ostiary.errors import ProviderError
from ostiary_gateway.authorization.cached_decision import Ruling
from ostiary_gateway.proxy.authorizer import Judge
from ostiary_gateway.proxy.context import Passage, Question, RequestPlan
from ostiary_gateway.proxy.plan_cache import Planner
from ostiary_gateway.proxy.responses import Answers


class RecheckAfterWait:
    """For the requests of one engine."""

    def __init__(self, judge: Judge, planner: Planner, answers: Answers) -> None:
        self._judge = judge
        self._planner = planner
        self._answers = answers

    async def is_still_allowed(self, passage: Passage) -> bool:
        """Whether the decision still holds. If it does not, the client is answered and the place given back."""
        plan = passage.plan
        try:
            ruling = await self._ruling_now(passage) if plan.ruling.allowed else plan.ruling
        except ProviderError as error:
            passage.release()
            self._answers.send_undecided(passage, plan.user, plan.info, error, plan.delegation)
            return False
        if passage.token.revoked:
            passage.release()
            self._answers.send_unauthorized(passage, attempted=True)
        elif ruling is None:
            passage.release()
            self._answers.send_no_route(passage)
        elif plan.ruling.allowed and not ruling.allowed:
            passage.release()
            self._answers.send_refusal(passage, self._refused_plan(passage, ruling))
        else:
            return True
        return False

    async def _ruling_now(self, passage: Passage) -> Ruling | None:
        """None if the configuration in force would not forward the request; raises `ProviderError`."""
        plan = passage.plan
        if self._judge.still_holds(plan.ruling):
            return plan.ruling
        required = self._judge.required_now(plan, passage)
        return None if required is None else await self._judge.authorize_plan(plan, required)

    def _refused_plan(self, passage: Passage, ruling: Ruling) -> RequestPlan:
        plan, request = passage.plan, passage.exchange.request
        question = Question(plan.info, plan.required, request.target, plan.upstream, plan.handler, stream=plan.stream)
        return self._planner.make(request, question, ruling, plan.user, actor=plan.actor, delegation=plan.delegation)
