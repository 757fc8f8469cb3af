"""Which trace a request belongs to, whether it is recorded, and what its spans are when it is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ostiary_gateway.observability.tracer import Tracer
from ostiary_gateway.observability.tracing import Span, SpanKind, Trace, TraceContext, UnsampledTrace
from ostiary_gateway.testing import FakeClock

INCOMING = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True, "a=1")


class Exported:
    def __init__(self, *, ratio: float = 1.0) -> None:
        self.clock = FakeClock()
        self.spans: list[Span] = []
        self.tracer = Tracer(self.put, self.clock, ratio=ratio, trusts=lambda address: address == "10.0.0.1")

    def put(self, spans: Sequence[Span]) -> None:
        self.spans.extend(spans)

    def finish(self, trace: Trace, began: float = 1000.0) -> None:
        self.tracer.finish(trace, "GET", began, {"a": 1}, failed=False)


# --- whose trace ---


@pytest.mark.parametrize("sampled", [True, False])
def test_the_trace_of_a_trusted_peer_is_continued_with_its_decision(sampled: bool) -> None:
    exported = Exported(ratio=0.0 if sampled else 1.0)
    trace = exported.tracer.start(INCOMING._replace(sampled=sampled), "10.0.0.1")
    assert trace.context == INCOMING._replace(span_id=trace.context.span_id, sampled=sampled)
    assert (trace.parent_id, trace.link) == (INCOMING.span_id, None)
    assert trace.context.span_id != INCOMING.span_id
    assert type(trace) is (Trace if sampled else UnsampledTrace)


def test_anybody_else_begins_a_trace_with_a_link_to_the_one_they_name() -> None:
    trace = Exported().tracer.start(INCOMING, "192.0.2.1")
    assert trace.context.trace_id != INCOMING.trace_id
    assert (trace.parent_id, trace.link, trace.context.state) == ("", INCOMING, "")


def test_who_names_no_trace_begins_one() -> None:
    exported = Exported()
    traces = [exported.tracer.start(None, "10.0.0.1") for _ in range(50)]
    assert len({trace.context.trace_id for trace in traces}) == 50
    assert len({trace.context.span_id for trace in traces}) == 50
    assert {(len(trace.context.trace_id), len(trace.context.span_id)) for trace in traces} == {(32, 16)}


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.25, 100, 400), (1.0, 1000, 1000)])
def test_of_the_traces_that_begin_here_a_part_is_recorded(ratio: float, least: int, most: int) -> None:
    """The bounds are more than ten standard deviations away."""
    exported = Exported(ratio=ratio)
    recorded = sum(exported.tracer.start(None, "").context.sampled for _ in range(1000))
    assert least <= recorded <= most


# --- spans ---


def test_each_step_ends_where_the_next_begins_and_the_last_with_the_request() -> None:
    exported = Exported()
    clock, trace = exported.clock, exported.tracer.start(INCOMING, "10.0.0.1")
    began = clock.monotonic()
    trace.enter("authenticate", clock.monotonic())
    clock.advance(1)
    trace.enter("authorize", clock.monotonic())
    trace.mark("cached", True)
    clock.advance(2)
    trace.enter("forward", clock.monotonic(), SpanKind.CLIENT)
    assert trace.step == "forward"
    clock.advance(4)
    exported.finish(trace, began)
    server, first, second, third = exported.spans
    start = clock.now().timestamp() - 7
    assert [(span.name, span.began - start, span.ended - start) for span in exported.spans] == [
        ("GET", 0, 7),
        ("authenticate", 0, 1),
        ("authorize", 1, 3),
        ("forward", 3, 7),
    ]
    assert [span.kind.value for span in exported.spans] == [2, 1, 1, 3]
    assert server.parent_id == INCOMING.span_id
    assert {span.parent_id for span in (first, second, third)} == {server.context.span_id}
    assert {span.context.trace_id for span in exported.spans} == {INCOMING.trace_id}
    assert len({span.context.span_id for span in exported.spans}) == 4
    assert (server.attributes, second.attributes, third.attributes) == ({"a": 1}, {"cached": True}, {})
    assert server.links == ()


def test_a_link_stands_on_the_span_of_the_request_alone() -> None:
    exported = Exported()
    trace = exported.tracer.start(INCOMING, "192.0.2.1")
    trace.enter("authenticate", 1000.0)
    exported.finish(trace)
    assert [span.links for span in exported.spans] == [(INCOMING,), ()]


def test_a_request_is_finished_once() -> None:
    exported = Exported()
    trace = exported.tracer.start(None, "")
    exported.finish(trace)
    exported.finish(trace)
    trace.enter("late", 1000.0)
    assert len(exported.spans) == 1
    assert trace.steps == []


def test_of_a_request_that_is_not_recorded_nothing_is_kept_and_the_upstream_is_told_so() -> None:
    exported = Exported(ratio=0.0)
    trace = exported.tracer.start(None, "")
    trace.enter("authenticate", 1000.0)
    trace.mark("cached", True)
    assert trace.begin_inside("part", 1000.0) is None
    lines = trace.upstream_lines().decode()
    assert lines.startswith(f"traceparent: 00-{trace.context.trace_id}-")
    assert lines.endswith("-00\r\n")
    exported.finish(trace)
    assert (trace.steps, exported.spans, trace.step) == ([], [], "")
