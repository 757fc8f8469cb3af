"""OTLP: spans as the messages that OpenTelemetry defines for them. The only module that needs the extra ``otel``.

Tokens are taken out of every text, as in logs and audit events: clients put them into paths, names and headers. Called
by the exporter. https://opentelemetry.io/docs/specs/otlp/
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from ostiary.core.secrets.redact import without_tokens
from ostiary.gateway.observe.tracing.spans import AttributeValue, Span, SpanAttributes
from ostiary.wire.audit.redaction import REDACTED

_NANOSECONDS = 1_000_000_000


class OtlpEncoder:
    """Encodes the spans of one program. *resource* says which one that is."""

    def __init__(self, resource: SpanAttributes, *, scope: str, version: str) -> None:
        self._resource = Resource(attributes=_pairs(resource))
        self._scope = InstrumentationScope(name=scope, version=version)

    def encode(self, spans: Sequence[Span]) -> bytes:
        """The body of a request to a collector."""
        scope = ScopeSpans(scope=self._scope, spans=[_message(span) for span in spans])
        ours = ResourceSpans(resource=self._resource, scope_spans=[scope])
        return bytes(ExportTraceServiceRequest(resource_spans=[ours]).SerializeToString())


def rejected_spans(body: bytes) -> int:
    """How many spans a collector has rejected, by the body of its answer 200."""
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
