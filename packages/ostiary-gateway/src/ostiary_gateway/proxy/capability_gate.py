"""Authorize the capabilities that an object in a request body uses, such as the privileges of a pod.

Runs after the request itself was allowed, so that bodies of denied requests are never read. The body that was
authorized is forwarded byte for byte.
"""

from __future__ import annotations

from dataclasses import replace

from ostiary.errors import ProviderError
from ostiary.model import RequestInfo, Verdict
from ostiary_gateway.authorization.cached_decision import CachedDecision, OutOfScope, stricter
from ostiary_gateway.authorization.capabilities import CapabilityRefused, questions_about
from ostiary_gateway.interfaces.attributes import ObjectCapabilities, ReadsCapabilities, RequestContent
from ostiary_gateway.proxy.authorizer import RequestAuthorizer
from ostiary_gateway.proxy.body_buffer import BodyBuffer, sent_headers
from ostiary_gateway.proxy.context import RequestAttributes, RequestContext
from ostiary_gateway.proxy.plan_cache import Planner
from ostiary_gateway.proxy.responses import Responses
from ostiary_gateway.proxy.revalidation import RecheckAfterWait
from ostiary_gateway.proxy.target import path_of

CARRIED = "another proxy carries it, and shows no body"
TOO_LARGE = "it is too large"


class CapabilityCheck:
    """Checks capabilities for one engine.

    *shows_bodies*: requests have bodies here, unlike in external authorization.
    """

    def __init__(
        self,
        judge: RequestAuthorizer,
        planner: Planner,
        answers: Responses,
        bodies: BodyBuffer,
        recheck: RecheckAfterWait,
        *,
        shows_bodies: bool,
    ) -> None:
        self._judge = judge
        self._planner = planner
        self._answers = answers
        self._bodies = bodies
        self._recheck = recheck
        self._shows_bodies = shows_bodies

    async def is_allowed(self, ctx: RequestContext) -> bool:
        """Return whether the request may continue, with a plan that has its capabilities.

        If not, a response is sent.
        """
        upstream = ctx.plan.upstream
        assert upstream is not None
        assert upstream.capabilities is not None
        asked = await self._read(ctx, upstream.capabilities)
        if asked is None:
            return False
        if ctx.exchange.gone:
            ctx.release()
            return False
        if not asked.names:
            ctx.plan = replace(ctx.plan, reads_capabilities=False)
            return await self._recheck.is_still_allowed(ctx)
        return await self._is_granted(ctx, asked) and await self._recheck.is_still_allowed(ctx)

    async def _read(self, ctx: RequestContext, reader: ReadsCapabilities) -> ObjectCapabilities | None:
        """Return the capabilities; None if a response was sent or the client is gone."""
        request, info = ctx.exchange.request, ctx.plan.info
        if not self._shows_bodies:
            return reader.in_doubt(info, CARRIED)
        if (request.content_length or 0) > reader.largest_body:
            return reader.in_doubt(info, TOO_LARGE)
        body = await self._bodies.read(ctx, reader.largest_body)
        if body is None:
            return None
        types = tuple(value for _, value in sent_headers(ctx, b"content-type"))
        encodings = tuple(value for _, value in sent_headers(ctx, b"content-encoding"))
        try:
            return reader.capabilities_of(info, RequestContent(types, encodings, body))
        finally:
            self._bodies.release(ctx, body)

    async def _is_granted(self, ctx: RequestContext, asked: ObjectCapabilities) -> bool:
        plan = ctx.plan
        questions = questions_about(plan.info, asked.names)
        ruling = plan.ruling
        try:
            for question in questions:
                answer = await self._judge.authorize(plan.user, (question,), plan.delegation)
                if not answer.allowed:
                    self._refuse(ctx, questions, _refusal(question, answer, asked))
                    return False
                ruling = stricter(ruling, answer)
        except ProviderError as error:
            ctx.release()
            self._answers.send_undecided(ctx, plan.user, plan.info, error, plan.delegation)
            return False
        self._make_plan(ctx, questions, ruling)
        return True

    def _refuse(self, ctx: RequestContext, questions: tuple[RequestInfo, ...], refusal: CachedDecision) -> None:
        ctx.release()
        self._make_plan(ctx, questions, refusal)
        self._answers.send_refusal(ctx, ctx.plan)

    def _make_plan(self, ctx: RequestContext, questions: tuple[RequestInfo, ...], ruling: CachedDecision) -> None:
        """Make a plan for this request only: another request with the same request line has another object."""
        plan, request = ctx.plan, ctx.exchange.request
        target = path_of(request.target, request.host)
        ctx.plan = self._planner.make(
            request,
            RequestAttributes(
                questions[0], questions, target, plan.upstream, long_running=plan.long_running, stream=plan.stream
            ),
            ruling,
            plan.user,
            actor=plan.actor,
            impersonation=plan.impersonation,
            delegation=plan.delegation,
        )


def _refusal(question: RequestInfo, answer: CachedDecision, asked: ObjectCapabilities) -> CachedDecision:
    names = question.name or ", ".join(asked.names)
    what = f"the object asks for the capability {names}"
    if asked.doubt:
        what = f"the object may ask for any capability, as its body cannot be read with certainty: {asked.doubt}"
    if isinstance(answer, OutOfScope):
        return replace(answer, reason=f"{answer.reason}; {what}")
    if question.name:
        needed = f'this needs "use" of capabilities.ostiary.dev "{question.name}"'
    else:
        needed = "the policy refuses the request with it"
    return CapabilityRefused(
        Verdict.DENY,
        f"{what}; {needed}",
        False,
        until=answer.until,
        generation=answer.generation,
        question=question,
    )
