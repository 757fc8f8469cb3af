"""Reserve quota for requests that change objects, and settle the reservation when the request has ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ostiary.errors import ProviderError
from ostiary.model import Attributes
from ostiary_gateway.interfaces.admission import (
    Admission,
    CountsObjects,
    Hold,
    UpstreamAnswer,
    UpstreamApi,
    WriteOutcome,
    WriteRequest,
    WriteResult,
)
from ostiary_gateway.proxy.body_buffer import BodyBuffer, sent_headers
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.recorder import AnswerRecorder
from ostiary_gateway.proxy.request_tasks import RequestTasks
from ostiary_gateway.proxy.responses import Responses
from ostiary_gateway.proxy.revalidation import RecheckAfterWait
from ostiary_gateway.proxy.target import path_of

_CHANGING = frozenset(("create", "update", "patch", "delete", "deletecollection"))
# The headers that describe the format of a body.
_ABOUT_BODY = (b"content-type", b"content-encoding")

log = logging.getLogger("ostiary.gateway")


class QuotaGate:
    """Queries the counting admission providers of one engine before a request is forwarded."""

    def __init__(
        self,
        providers: Sequence[CountsObjects],
        api: UpstreamApi,
        answers: Responses,
        tasks: RequestTasks,
        recheck: RecheckAfterWait,
        bodies: BodyBuffer,
    ) -> None:
        self._bodies = bodies
        self._providers = providers
        self._api = api
        self._answers = answers
        self._tasks = tasks
        self._recheck = recheck

    def covering(self, ctx: RequestContext) -> list[CountsObjects]:
        """Return the providers that count what this request changes."""
        plan = ctx.plan
        upstream = plan.upstream
        if plan.info.verb not in _CHANGING or upstream is None or not upstream.is_kubernetes:
            return []
        attributes = Attributes(plan.user, plan.info)
        return [provider for provider in self._providers if provider.covers(attributes)]

    async def hold(self, ctx: RequestContext, providers: Sequence[CountsObjects]) -> bool:
        """Reserve quota for a request. If that fails, send the response and release the permit."""
        attributes = Attributes(ctx.plan.user, ctx.plan.info)
        body: bytes | None = None
        if any(provider.needs_body(attributes) for provider in providers):
            body = await self._bodies.read(ctx, min(provider.largest_body for provider in providers))
            if body is None:
                return False
        holds: list[Hold] = []
        try:
            is_admitted = await self._reserve(ctx, providers, _write_request(ctx, attributes, body), holds)
        finally:
            if body is not None:
                self._bodies.release(ctx, body)
        if is_admitted and ctx.exchange.gone:
            ctx.release()
        elif is_admitted and await self._recheck.is_still_allowed(ctx):
            ctx.holds = tuple(holds)
            return True
        self._settle(holds, WriteResult(WriteOutcome.NOT_DONE))
        return False

    def settle(self, ctx: RequestContext, outcome: WriteOutcome, status: int, body: bytes | None) -> None:
        """Settle the reservations of a request in the background: the client already has its response."""
        holds, ctx.holds = ctx.holds, ()
        self._settle(holds, WriteResult(outcome, status, body))

    # --- inside ---

    async def _reserve(
        self, ctx: RequestContext, providers: Sequence[CountsObjects], request: WriteRequest, holds: list[Hold]
    ) -> bool:
        for provider in providers:
            try:
                result = await provider.reserve(request, self._api)
            except ProviderError as error:
                ctx.release()
                self._answers.send_uncounted(ctx, error)
                return False
            except Exception as error:
                ctx.release()
                log.error("an admission provider failed", extra={"cause": type(error).__name__}, exc_info=error)
                self._answers.send_internal_error(ctx, ctx.plan)
                return False
            if isinstance(result, Admission):
                ctx.release()
                self._answers.send_not_admitted(ctx, result)
                return False
            if isinstance(result, UpstreamAnswer):
                ctx.release()
                self._answers.send_answer_of_upstream(ctx, result)
                return False
            holds.append(result)
        return True

    def _settle(self, holds: Sequence[Hold], result: WriteResult) -> None:
        if holds:
            self._tasks.start(_settle_all(holds, result))


async def _settle_all(holds: Sequence[Hold], result: WriteResult) -> None:
    for hold in holds:
        try:
            await hold.settle(result)
        except Exception as error:
            cause = error.cause or error.summary if isinstance(error, ProviderError) else type(error).__name__
            log.error("what a request changed could not be counted", extra={"cause": cause})


def outcome_of(status: int, *, sent: bool) -> WriteOutcome:
    """Return whether the upstream has made the change, by its status. Unknown after a 5xx or no response."""
    if not sent:
        return WriteOutcome.NOT_DONE
    if 200 <= status < 300:
        return WriteOutcome.DONE
    return WriteOutcome.NOT_DONE if 400 <= status < 500 else WriteOutcome.UNKNOWN


def answer_recorder(ctx: RequestContext) -> AnswerRecorder | None:
    """Return a recorder of the response for the holds that read it, in addition to the one for the audit log."""
    if not any(hold.wants_body for hold in ctx.holds):
        return None
    return AnswerRecorder(ctx.recorder)


def _write_request(ctx: RequestContext, attributes: Attributes, body: bytes | None) -> WriteRequest:
    request, upstream = ctx.exchange.request, ctx.plan.upstream
    assert upstream is not None, "only what is forwarded is counted"
    target = upstream.forwarded_target(path_of(request.target, request.host))
    return WriteRequest(attributes, target.decode("ascii"), tuple(sent_headers(ctx, *_ABOUT_BODY)), body)
