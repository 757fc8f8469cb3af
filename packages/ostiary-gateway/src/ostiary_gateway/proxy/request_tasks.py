"""Runs what a request must wait for, in a task of its own, and answers the client whatever goes wrong in it.

Called by the engine and its steps: a token that is not in memory, a provider that asks others, a seat in the queue.
"""

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
    """The tasks of one engine."""

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
        """Run *work* for a request. If it raises, the client still gets an answer."""
        self.start(self._run_and_answer(work, ctx))

    async def _run_and_answer(self, work: Work, ctx: RequestContext) -> None:
        try:
            await work
        except Exception as error:
            self.fail(ctx, error)

    def fail(self, ctx: RequestContext, error: Exception) -> None:
        """Something went wrong inside: log it, record it, give the seat back, and answer 500 if that is possible."""
        extra = {"request_id": ctx.audit_id, "cause": type(error).__name__}
        log.error("a request failed inside the gateway", extra=extra, exc_info=error)
        ctx.release()
        self._records.record_panic(ctx)
        exchange = ctx.exchange
        if exchange.ended:
            # An application of ours has sent its own 500 before it raised.
            return
        if exchange.head_sent:
            exchange.abort()
        elif not exchange.gone:
            self._answers.send_internal_error(ctx)
