"""Export of spans over OTLP/HTTP: encoding, batching in the background, and the collector client.

    put  ->  a bounded buffer  ->  one request for many spans  ->  accepted, or dropped and counted

The only module that needs the extra ``otel``. https://opentelemetry.io/docs/specs/otlp/
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from ostiary.core.clock import Clock
from ostiary.core.redaction import without_tokens
from ostiary_gateway.observability.metrics import Counter
from ostiary_gateway.observability.otlp_headers import read_headers
from ostiary_gateway.observability.repeated_log import RepeatedLog
from ostiary_gateway.observability.tracing import AttributeValue, Span, SpanAttributes
from ostiary_gateway.wire.audit_policy import REDACTED

if TYPE_CHECKING:
    import httpx2

_NANOSECONDS = 1_000_000_000


class OtlpEncoder:
    """Encodes the spans of the process that *resource* describes.

    Tokens are redacted from every text, as in logs and audit events, because clients put them into paths, names and
    headers.
    """

    def __init__(self, resource: SpanAttributes, *, scope: str, version: str) -> None:
        self._resource = Resource(attributes=_pairs(resource))
        self._scope = InstrumentationScope(name=scope, version=version)

    def encode(self, spans: Sequence[Span]) -> bytes:
        """Return the request body for a collector."""
        scope = ScopeSpans(scope=self._scope, spans=[_message(span) for span in spans])
        ours = ResourceSpans(resource=self._resource, scope_spans=[scope])
        return bytes(ExportTraceServiceRequest(resource_spans=[ours]).SerializeToString())


def rejected_spans(body: bytes) -> int:
    """Return how many spans a collector rejected, from the body of its 200 response."""
    try:
        return int(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
    except DecodeError:
        return 0


def _message(span: Span) -> SpanMessage:
    context = span.context
    return SpanMessage(
        trace_id=bytes.fromhex(context.trace_id),
        span_id=bytes.fromhex(context.span_id),
        trace_state=_without_tokens(context.state),
        parent_span_id=bytes.fromhex(span.parent_id),
        name=span.name,
        kind=span.kind.value,  # type: ignore[arg-type]
        start_time_unix_nano=int(span.began * _NANOSECONDS),
        end_time_unix_nano=int(span.ended * _NANOSECONDS),
        attributes=_pairs(span.attributes),
        links=[
            SpanMessage.Link(
                trace_id=bytes.fromhex(link.trace_id),
                span_id=bytes.fromhex(link.span_id),
                trace_state=_without_tokens(link.state),
            )
            for link in span.links
        ],
        status=Status(code=Status.STATUS_CODE_ERROR) if span.failed else None,
    )


def _pairs(attributes: SpanAttributes) -> list[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in attributes.items()]


def _value(value: AttributeValue) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    return AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=_without_tokens(value))


def _without_tokens(text: str) -> str:
    return without_tokens(text, REDACTED)


ATTEMPTS = 4
FIRST_RETRY_SECONDS = 1.0
# How long the gateway tries to send the remaining spans when it stops.
CLOSE_SECONDS = 2.0
# Status codes after which a batch may be sent again (OTLP/HTTP, "Failures").
RETRIED = frozenset((429, 502, 503, 504))

log = logging.getLogger("ostiary.gateway.tracing")


class CollectorAnswer(NamedTuple):
    """Response of a collector to a batch. `rejected` is the number of rejected spans of an accepted batch."""

    status: int
    rejected: int = 0


class Collector(Protocol):
    """A receiver of spans. Any exception of `post` means that the collector is unavailable."""

    async def post(self, spans: Sequence[Span]) -> CollectorAnswer: ...

    async def close(self) -> None: ...


class SpanExporter:
    """Sends the spans of one configuration in batches, in the background. No request waits for it.

    A batch that the collector does not accept is retried a few times. Spans that do not fit into the buffer meanwhile
    are dropped. Log lines about an outage are thinned out (`RepeatedLog`).
    """

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
        """Buffer the spans of one request, all or none of them."""
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
        """Send batches until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._wait):
                    await self._enough.wait()
            except TimeoutError:
                pass
            self._enough.clear()
            while self._waiting:
                self._sending = asyncio.ensure_future(self._send_batch(ATTEMPTS))
                # Shielded, so that a batch in flight can complete after `run` is cancelled: `close` waits for it.
                await asyncio.shield(self._sending)

    def hand_over(self, successor: SpanExporter) -> None:
        """Pass the buffered spans, and all later ones, to the exporter of the next configuration.

        A request that began before the reload may last for hours, and no span should wait until the last such request
        ends.
        """
        self._successor = successor
        while self._waiting:
            successor.put([self._waiting.popleft()])

    async def close(self, *, seconds: float = CLOSE_SECONDS) -> None:
        """Send the remaining spans, without retries. The caller must have stopped `run`."""
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
        """Send one batch and return whether it was accepted. On cancellation the batch returns to the buffer."""
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
        """Post *batch* with retries. Returns the reason why it is dropped, or an empty text."""
        delay = FIRST_RETRY_SECONDS
        for attempt in range(attempts):
            if attempt:
                await self._pause(delay)
                delay *= 2
            try:
                answer = await self._collector.post(batch)
            except Exception as error:
                # Only its type: the text of a transport error may contain the URL, which may contain a password.
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


# The response only contains the number of rejected spans, so a larger one is not read.
LARGEST_ANSWER = 64 * 1024
# Encoding a span takes about 20 us, so the event loop serves requests between parts of a batch.
SPANS_PER_TURN = 32
_PROTOBUF = "application/x-protobuf"


class OtlpCollector:
    """Client of an OTLP/HTTP collector: one POST of protobuf per batch.

    *headers_file* is read for every batch, because the operator replaces its contents before they expire.
    """

    def __init__(
        self,
        url: str,
        *,
        client: httpx2.AsyncClient,
        encoder: OtlpEncoder,
        rejected_spans: Callable[[bytes], int],
        seconds: float,
        headers_file: Path | None = None,
    ) -> None:
        self._url, self._client, self._encoder = url, client, encoder
        self._rejected_spans = rejected_spans
        self._seconds = seconds
        self._headers_file = headers_file

    async def post(self, spans: Sequence[Span]) -> CollectorAnswer:
        headers = {} if self._headers_file is None else read_headers(self._headers_file)
        headers["content-type"] = _PROTOBUF
        body = await self._encode(spans)
        async with asyncio.timeout(self._seconds):
            async with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                status, answer = response.status_code, b""
                if status != 200:
                    return CollectorAnswer(status)
                async for part in response.aiter_bytes():
                    answer += part
                    if len(answer) > LARGEST_ANSWER:
                        return CollectorAnswer(status)
        return CollectorAnswer(status, self._rejected_spans(answer))

    async def _encode(self, spans: Sequence[Span]) -> bytes:
        parts = []
        for start in range(0, len(spans), SPANS_PER_TURN):
            parts.append(self._encoder.encode(spans[start : start + SPANS_PER_TURN]))
            await asyncio.sleep(0)
        # Concatenated protobuf messages are one message with the repeated fields of all of them.
        return b"".join(parts)

    async def close(self) -> None:
        await self._client.aclose()
