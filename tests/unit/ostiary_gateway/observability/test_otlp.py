"""OTLP as OpenTelemetry defines it: what is written can be read with its own messages."""

from __future__ import annotations

from ostiary_gateway.observability.otlp import OtlpEncoder, rejected_spans
from tests.support.collector import Collector, plain
from tests.unit.ostiary_gateway.observability.test_otlp_exporter import SPAN


def test_an_answer_that_is_no_message_rejects_nothing() -> None:
    assert rejected_spans(b"\xff\xff") == 0
    assert rejected_spans(b"") == 0


def test_the_stand_in_takes_what_the_specification_describes() -> None:
    assert Collector().answer(OtlpEncoder({}, scope="s", version="1").encode([SPAN]))[0] == 200


def test_every_batch_says_who_sends_it_and_parts_of_a_batch_can_be_joined() -> None:
    encoder, collector = OtlpEncoder({"service.name": "gateway", "process.pid": 7}, scope="s", version="1"), Collector()
    collector.answer(encoder.encode([SPAN]) + encoder.encode([SPAN, SPAN]))
    (request,) = collector.requests
    assert [plain(each.resource.attributes) for each in request.resource_spans] == [
        {"service.name": "gateway", "process.pid": 7}
    ] * 2
    scopes = [scope for each in request.resource_spans for scope in each.scope_spans]
    assert {(scope.scope.name, scope.scope.version) for scope in scopes} == {("s", "1")}
    assert len(collector.spans) == 3
