"""Tasks for requests that have to wait: for a token lookup, for a provider, for a permit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.request_log import RequestLog
from ostiary_gateway.proxy.responses import Responses

log = logging.getLogger("ostiary.gateway")

Work = Coroutine[object, object, None]


class RequestTasks:
    """The tasks of one engine. A task that fails sends a response to the client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answers: Responses, records: RequestLog) -> None:
        self._loop = loop
        self._answers = answers
        self._records = records
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Work) -> None:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def start_for(self, ctx: RequestContext, work: Work) -> None:
        """Run *work* for a request. If it raises, the client gets a 500."""
        self.start(self._run_and_answer(work, ctx))

    async def _run_and_answer(self, work: Work, ctx: RequestContext) -> None:
        try:
            await work
        except Exception as error:
            self.fail(ctx, error)

    def fail(self, ctx: RequestContext, error: Exception) -> None:
        """Handle an internal error: log and record it, release the permit, and send a 500 if possible."""
        extra = {"request_id": ctx.audit_id, "cause": type(error).__name__}
        log.error("a request failed inside the gateway", extra=extra, exc_info=error)
        ctx.release()
        self._records.record_panic(ctx)
        exchange = ctx.exchange
        if exchange.ended:
            # A built-in application has sent its own 500 before it raised.
            return
        if exchange.head_sent:
            exchange.abort()
        elif not exchange.gone:
            self._answers.send_internal_error(ctx)
