"""Holds up requests whose object may ask for capabilities until their body is read, and the policy asked about it.

Called by the engine for what an upstream's mapper says (`ReadsCapabilities`), after the request itself is allowed:
whoever may not create a pod is refused before anybody reads the pod. The body that is decided on goes on byte for byte.
"""

from __future__ import annotations

from dataclasses import replace

from ostiary.errors import ProviderError
from ostiary.model import RequestInfo, Verdict
from ostiary_gateway.authorization.cached_decision import BeyondScope, Ruling, stricter
from ostiary_gateway.authorization.capabilities import CapabilityRefused, questions_about
from ostiary_gateway.interfaces.attributes import ObjectCapabilities, ReadsCapabilities, RequestContent
from ostiary_gateway.proxy.authorizer import Judge
from ostiary_gateway.proxy.body_buffer import Bodies, sent_headers
from ostiary_gateway.proxy.context import Passage, Question
from ostiary_gateway.proxy.plan_cache import Planner
from ostiary_gateway.proxy.responses import Answers
from ostiary_gateway.proxy.revalidation import RecheckAfterWait
from ostiary_gateway.proxy.target import path_of

CARRIED = "another proxy carries it, and shows no body"
TOO_LARGE = "it is too large"


class CapabilityCheck:
    """For the requests of one engine. *shows_bodies*: whether they come with their bodies."""

    def __init__(
        self,
        judge: Judge,
        planner: Planner,
        answers: Answers,
        bodies: Bodies,
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

    async def is_allowed(self, passage: Passage) -> bool:
        """Whether the request may go on, with a plan that has its capabilities. If not, the client is answered."""
        upstream = passage.plan.upstream
        assert upstream is not None
        assert upstream.capabilities is not None
        asked = await self._read(passage, upstream.capabilities)
        if asked is None:
            return False
        if passage.exchange.gone:
            passage.release()
            return False
        if not asked.names:
            passage.plan = replace(passage.plan, reads_capabilities=False)
            return await self._recheck.is_still_allowed(passage)
        return await self._is_granted(passage, asked) and await self._recheck.is_still_allowed(passage)

    async def _read(self, passage: Passage, reader: ReadsCapabilities) -> ObjectCapabilities | None:
        """None if the client has been answered, or is gone."""
        request, info = passage.exchange.request, passage.plan.info
        if not self._shows_bodies:
            return reader.in_doubt(info, CARRIED)
        if (request.content_length or 0) > reader.largest_body:
            return reader.in_doubt(info, TOO_LARGE)
        body = await self._bodies.read(passage, reader.largest_body)
        if body is None:
            return None
        types = tuple(value for _, value in sent_headers(passage, b"content-type"))
        encodings = tuple(value for _, value in sent_headers(passage, b"content-encoding"))
        try:
            return reader.capabilities_of(info, RequestContent(types, encodings, body))
        finally:
            self._bodies.release(passage, body)

    async def _is_granted(self, passage: Passage, asked: ObjectCapabilities) -> bool:
        plan = passage.plan
        questions = questions_about(plan.info, asked.names)
        ruling = plan.ruling
        try:
            for question in questions:
                answer = await self._judge.authorize(plan.user, (question,), plan.delegation)
                if not answer.allowed:
                    self._refuse(passage, questions, _refusal(question, answer, asked))
                    return False
                ruling = stricter(ruling, answer)
        except ProviderError as error:
            passage.release()
            self._answers.send_undecided(passage, plan.user, plan.info, error, plan.delegation)
            return False
        self._make_plan(passage, questions, ruling)
        return True

    def _refuse(self, passage: Passage, questions: tuple[RequestInfo, ...], refusal: Ruling) -> None:
        passage.release()
        self._make_plan(passage, questions, refusal)
        self._answers.send_refusal(passage, passage.plan)

    def _make_plan(self, passage: Passage, questions: tuple[RequestInfo, ...], ruling: Ruling) -> None:
        """The plan of this very request: another one with the same request line has another object."""
        plan, request = passage.plan, passage.exchange.request
        target = path_of(request.target, request.host)
        passage.plan = self._planner.make(
            request,
            Question(
                questions[0], questions, target, plan.upstream, long_running=plan.long_running, stream=plan.stream
            ),
            ruling,
            plan.user,
            actor=plan.actor,
            impersonation=plan.impersonation,
            delegation=plan.delegation,
        )


def _refusal(question: RequestInfo, answer: Ruling, asked: ObjectCapabilities) -> Ruling:
    names = question.name or ", ".join(asked.names)
    what = f"the object asks for the capability {names}"
    if asked.doubt:
        what = f"the object may ask for any capability, as its body cannot be read with certainty: {asked.doubt}"
    if isinstance(answer, BeyondScope):
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
