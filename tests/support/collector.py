"""A collector of traces: a real HTTP server that takes OTLP over HTTP, as the specification describes it.

It stands in for an OpenTelemetry collector, which is not to be had here, and decodes what it gets with the messages
that OpenTelemetry publishes.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from httpx import Headers
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.http_server import HttpServer, Request, Response

SERVER, CLIENT, INTERNAL = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_INTERNAL


def plain(attributes: object) -> dict[str, str | int | bool]:
    """Attributes as a dictionary."""
    pairs: dict[str, str | int | bool] = {}
    for pair in attributes:  # type: ignore[attr-defined]
        assert isinstance(pair, KeyValue)
        assert pair.key not in pairs, f"{pair.key} is there twice"
        pairs[pair.key] = getattr(pair.value, pair.value.WhichOneof("value") or "")
    return pairs


@dataclass
class Collector:
    """`answers` are the codes that it gives; 200 when there are none left. `rejects` spans of each batch."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    rejects: int = 0
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    posts: int = 0

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, str | int | bool]:
        return plain(self.requests[-1].resource_spans[0].resource.attributes)

    def of_kind(self, kind: int) -> list[Span]:
        return [span for span in self.spans if span.kind == kind]

    def children(self, span: Span) -> list[Span]:
        return [each for each in self.spans if each.parent_span_id == span.span_id]

    def respond(self, request: Request) -> Response:
        assert request.path == "/v1/traces"
        assert request.headers["content-type"] == "application/x-protobuf"
        self.headers.append(request.headers)
        status, body = self.answer(request.body)
        return Response(status, body, {"Content-Type": "application/x-protobuf"})

    def answer(self, body: bytes) -> tuple[int, bytes]:
        code = self.answers.pop(0) if self.answers else 200
        if code == 200:
            self.requests.append(ExportTraceServiceRequest.FromString(body))
        partial = ExportTracePartialSuccess(rejected_spans=self.rejects)
        self.posts += 1
        return code, bytes(ExportTraceServiceResponse(partial_success=partial).SerializeToString())


@contextmanager
def collecting(tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """A collector that listens on the loopback."""
    collector = Collector()
    with HttpServer(collector.respond, tls=tls).running() as server:
        collector.url = f"{server.url}/v1/traces"
        yield collector
