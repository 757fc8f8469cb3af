"""The engine that records the steps of each request as spans. An app with tracing has it in the place of `Engine`.

The order of the steps is that of `Engine`; here each step says when it begins. Choosing between the two when the
configuration is loaded keeps the plain engine free of every question whether a request is traced.
"""

from __future__ import annotations

import asyncio

from ostiary.gateway.authenticate.tokens_in_use import TokenInUse
from ostiary.gateway.http1.exchange import Exchange
from ostiary.gateway.http1.headers import Scanned
from ostiary.gateway.observe.tracing.spans import SpanKind
from ostiary.gateway.observe.tracing.trace import CURRENT
from ostiary.gateway.observe.tracing.trace_context import TraceContext, read_context
from ostiary.gateway.request.engine import Engine, EngineParts
from ostiary.gateway.request.own.paths import OpenPaths, OwnApis, first_segment
from ostiary.gateway.request.questions import Location
from ostiary.gateway.request.records import RequestRecords
from ostiary.gateway.request.remembered.allowing import never_again
from ostiary.gateway.request.remembered.heads import RememberedHead
from ostiary.gateway.request.request_tasks import RequestTasks, Work
from ostiary.gateway.request.stages import Handler, OpenPath, Passage, Question, RequestPlan
from ostiary.gateway.request.target import path_of
from ostiary.gateway.request.traced.headers import TracedScanned
from ostiary.gateway.request.traced.passage import FORWARD, RequestTraces, TracedPassage, as_traced

AUTHENTICATE, AUTHORIZE, ADMIT, ANSWER = "authenticate", "authorize", "admit", "answer"
_OPEN_PATHS = {b"/auth": "sign-in", b"/webhooks": "review"}


class TracedRecords(RequestRecords):
    """A request that is counted is over, and so is its trace."""

    def conclude(self, passage: Passage, code: int, *, message: str = "") -> None:
        super().conclude(passage, code, message=message)
        as_traced(passage).finish(code)

    def count(self, passage: Passage, code: int, plan: RequestPlan | None = None) -> float:
        now = super().count(passage, code, plan)
        as_traced(passage).finish(code, plan)
        return now


class TracedTasks(RequestTasks):
    """A request whose client is gone, or that fails inside the gateway, may end without being counted."""

    async def _run_and_answer(self, work: Work, passage: Passage) -> None:
        await super()._run_and_answer(work, passage)
        # What is forwarded is concluded by the forwarder.
        if passage.exchange.gone and as_traced(passage).trace.step != FORWARD:
            as_traced(passage).finish(0)

    def fail(self, passage: Passage, error: Exception) -> None:
        super().fail(passage, error)
        as_traced(passage).finish(500)


class TracedOpenPaths(OpenPaths):
    def serve(self, path: OpenPath, passage: Passage) -> None:
        request, trace = passage.exchange.request, as_traced(passage).trace
        segment = first_segment(path_of(request.target, request.host))
        as_traced(passage).enter(_OPEN_PATHS.get(segment, ANSWER))
        # The tasks that serve it see it: what a sign-in does inside is timed by `traced_step`.
        before = CURRENT.set((trace, as_traced(passage).monotonic))
        try:
            super().serve(path, passage)
        finally:
            CURRENT.reset(before)


class TracedOwnApis(OwnApis):
    async def serve(self, handler: Handler, passage: Passage) -> None:
        as_traced(passage).enter(ANSWER)
        await super().serve(handler, passage)


class TracedEngine(Engine):
    """Serves requests and records them. *traces* says what becomes of the records."""

    records_type = TracedRecords
    tasks_type = TracedTasks
    open_paths_type = TracedOpenPaths
    own_apis_type = TracedOwnApis

    def __init__(self, parts: EngineParts, loop: asyncio.AbstractEventLoop, traces: RequestTraces) -> None:
        super().__init__(parts, loop)
        self._traces = traces
        self._forward_plain, self._forward = self._forward, self._forward_traced
        # A request that is allowed in one step, or passed on, would have no trace.
        self.allow_again, self.pass_on = never_again, None

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        head = request.known
        remembered = head if type(head) is RememberedHead and head.made_by is self._heads else None
        incoming = read_context(request.headers) if remembered is None else _incoming(remembered.scanned)
        trace = self._traces.tracer.start(incoming, exchange.connection.remote_address)
        passage = TracedPassage(exchange, self._monotonic(), self._audit_id(), trace, self._traces)
        exchange.audit_id = passage.audit_id
        trace.enter(AUTHENTICATE, passage.received_at)
        try:
            if remembered is None:
                self._begin(passage)
            else:
                self._begin_again(passage, remembered)
        except Exception as error:
            self._tasks.fail(passage, error)

    def _ask(self, passage: Passage, token: TokenInUse) -> None:
        as_traced(passage).enter(AUTHORIZE)
        as_traced(passage).trace.mark("ostiary.cached", True)
        super()._ask(passage, token)

    def _decide(self, passage: Passage, token: TokenInUse, question: Question, location: Location) -> None:
        as_traced(passage).trace.mark("ostiary.cached", False)
        super()._decide(passage, token, question, location)

    async def _decide_as_another(self, passage: Passage, token: TokenInUse, question: Question) -> None:
        as_traced(passage).trace.mark("ostiary.cached", False)
        await super()._decide_as_another(passage, token, question)

    def _admit(self, passage: Passage, token: TokenInUse, plan: RequestPlan) -> None:
        if as_traced(passage).trace.step == AUTHENTICATE:
            # A head that came before, with its decision: that this still holds has just been checked.
            as_traced(passage).enter(AUTHORIZE)
            as_traced(passage).trace.mark("ostiary.cached", True)
        as_traced(passage).trace.mark("ostiary.decision", plan.ruling.verdict.value)
        as_traced(passage).enter(ADMIT)
        super()._admit(passage, token, plan)

    def _forward_traced(self, passage: Passage) -> None:
        as_traced(passage).enter(FORWARD, SpanKind.CLIENT)
        scanned = passage.scanned
        # For this request alone: a head that is remembered shares what was read from it.
        scanned_copy = TracedScanned(scanned, None)
        scanned_copy.lines += as_traced(passage).trace.upstream_lines()
        passage.scanned = scanned_copy
        try:
            self._forward_plain(passage)
        finally:
            passage.scanned = scanned


def _incoming(scanned: Scanned) -> TraceContext | None:
    return scanned.incoming if isinstance(scanned, TracedScanned) else None
