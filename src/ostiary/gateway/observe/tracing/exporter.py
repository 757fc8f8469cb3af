"""Sends spans to a collector over OTLP/HTTP, in batches and in the background; no request ever waits for it.

    put (at once)  ->  a bounded buffer  ->  one request for many spans  ->  accepted, or dropped and counted

Filled by the tracer, run by the app. While the collector does not answer, a batch is sent again a few times; what comes
meanwhile and does not fit into the buffer is dropped. An outage is logged once in a while, and not for each batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from ostiary.core.clock import Clock
from ostiary.gateway.observe.families import Counter
from ostiary.gateway.observe.repeated_log import RepeatedLog
from ostiary.gateway.observe.tracing.spans import Span

ATTEMPTS = 4
FIRST_RETRY_SECONDS = 1.0
# How long a gateway that stops tries to send what is left.
CLOSE_SECONDS = 2.0
# The answers after which a batch may be sent again (OTLP/HTTP, "Failures").
RETRIED = frozenset((429, 502, 503, 504))

log = logging.getLogger("ostiary.gateway.tracing")


class CollectorAnswer(NamedTuple):
    """What a collector said about a batch. `rejected` are spans that it did not take, though the batch was accepted."""

    status: int
    rejected: int = 0


class Collector(Protocol):
    """Posts one batch. Any exception means that the collector could not be asked."""

    async def post(self, spans: Sequence[Span]) -> CollectorAnswer: ...

    async def close(self) -> None: ...


class SpanExporter:
    """For the spans of one configuration."""

    def __init__(
        self,
        collector: Collector,
        clock: Clock,
        *,
        sent: Counter,
        dropped: Counter,
        buffer: int,
        batch: int,
        wait: float,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._collector = collector
        self._sent, self._dropped = sent, dropped
        self._buffer, self._batch, self._wait = buffer, batch, wait
        self._pause = pause
        self._waiting: deque[Span] = deque()
        self._enough = asyncio.Event()
        self._sending: asyncio.Future[bool] | None = None
        self._successor: SpanExporter | None = None
        self._closed = False
        self._failing = False
        self._log = RepeatedLog(log, clock)

    def put(self, spans: Sequence[Span]) -> None:
        """Take the spans of one request, all or none of them."""
        if self._successor is not None:
            self._successor.put(spans)
            return
        if self._closed or len(self._waiting) + len(spans) > self._buffer:
            self._drop(len(spans), "buffer")
            return
        self._waiting.extend(spans)
        if len(self._waiting) >= self._batch:
            self._enough.set()

    async def run(self) -> None:
        """Send as long as the gateway runs."""
        while True:
            try:
                async with asyncio.timeout(self._wait):
                    await self._enough.wait()
            except TimeoutError:
                pass
            self._enough.clear()
            while self._waiting:
                self._sending = asyncio.ensure_future(self._send_batch(ATTEMPTS))
                # When this is stopped, the batch that is under way may still arrive: `close` waits for it.
                await asyncio.shield(self._sending)

    def hand_over(self, successor: SpanExporter) -> None:
        """Another configuration has taken over: what waits here, and what still comes, is sent by its exporter.

        A request that began before may go on for hours, and its spans must not wait for the last of them.
        """
        self._successor = successor
        while self._waiting:
            successor.put([self._waiting.popleft()])

    async def close(self, *, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is left, if the collector takes it at once. `run` has been stopped."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(seconds):
                if self._sending is not None:
                    await self._sending
                while self._waiting and await self._send_batch(1):
                    pass
        except TimeoutError:
            pass
        finally:
            self._drop(len(self._waiting), "stopped")
            self._waiting.clear()
            await self._collector.close()

    async def _send_batch(self, attempts: int) -> bool:
        """Whether it was accepted. A batch that is given up in the middle waits again."""
        batch = list(islice(self._waiting, self._batch))
        for _ in batch:
            self._waiting.popleft()
        try:
            reason = await self._deliver(batch, attempts)
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(batch))
            raise
        self._drop(len(batch) if reason else 0, reason)
        return not reason

    async def _deliver(self, batch: list[Span], attempts: int) -> str:
        """Post *batch*, several times if need be; returns why it is lost, or an empty text."""
        delay = FIRST_RETRY_SECONDS
        for attempt in range(attempts):
            if attempt:
                await self._pause(delay)
                delay *= 2
            try:
                answer = await self._collector.post(batch)
            except Exception as error:
                # Only its type: the text of a transport error may contain the URL, and the URL a password.
                self._report_failure(type(error).__name__)
                continue
            if answer.status < 300:
                self._record_answer(len(batch), answer)
                return ""
            self._report_failure(f"it answered {answer.status}")
            if answer.status not in RETRIED:
                return "refused"
        return "unavailable"

    def _record_answer(self, count: int, answer: CollectorAnswer) -> None:
        rejected = max(0, min(answer.rejected, count))
        self._sent.inc(by=count - rejected)
        if self._failing:
            log.info("the collector of traces accepts spans again", extra={"left_out": self._log.end()})
            self._failing = False
        if rejected:
            self._drop(rejected, "refused")
            fields = {"cause": "it answered that it rejected spans", "dropped": rejected}
            self._log.write(logging.WARNING, "the collector of traces rejects spans", fields)

    def _report_failure(self, cause: str) -> None:
        self._failing = True
        self._log.write(logging.WARNING, "the collector of traces does not accept spans", {"cause": cause})

    def _drop(self, count: int, reason: str) -> None:
        if count:
            self._dropped.inc(reason, by=count)
