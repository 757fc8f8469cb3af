"""The steps of a request, the parts of a step, and what an upstream is told of them."""

from __future__ import annotations

import pytest

from ostiary_gateway.observability.tracing import CURRENT, MOST_STEPS, SpanKind, traced_step
from tests.unit.ostiary_gateway.observability.test_tracer import INCOMING, Exported


def test_the_upstream_continues_below_the_step_that_asks_it() -> None:
    exported = Exported()
    trace = exported.tracer.start(INCOMING, "10.0.0.1")
    trace.enter("admit", 1000.0)
    trace.enter("forward", 1000.0, SpanKind.CLIENT)
    expected = INCOMING._replace(span_id=trace.steps[-1].span_id).lines()
    assert trace.upstream_lines() == expected
    assert b"tracestate: a=1\r\n" in expected


# --- parts of a step ---


def test_a_part_of_a_step_is_below_it_and_says_what_failed_but_not_how() -> None:
    exported = Exported()
    clock, trace = exported.clock, exported.tracer.start(None, "")
    trace.enter("sign-in", clock.monotonic())
    before = CURRENT.set((trace, clock.monotonic))
    try:
        with traced_step("look up groups", provider="ldap"):
            clock.advance(3)
        with pytest.raises(ValueError, match="secret"), traced_step("ask identity provider"):
            raise ValueError("secret")
    finally:
        CURRENT.reset(before)
    exported.finish(trace)
    _, outer, groups, failed = exported.spans
    assert {groups.parent_id, failed.parent_id} == {outer.context.span_id}
    assert (groups.ended - groups.began, groups.failed) == (3, False)
    assert groups.attributes == {"ostiary.provider": "ldap"}
    assert (failed.failed, failed.attributes) == (True, {"error.type": "ValueError"})
    assert "secret" not in repr(exported.spans)


def test_without_a_trace_a_part_of_a_step_is_only_done() -> None:
    with traced_step("look up groups", provider="ldap"):
        done = True
    assert done


def test_a_request_keeps_a_bounded_number_of_steps() -> None:
    exported = Exported()
    trace = exported.tracer.start(None, "")
    before = CURRENT.set((trace, exported.clock.monotonic))
    try:
        for _ in range(MOST_STEPS + 10):
            with traced_step("again"):
                pass
    finally:
        CURRENT.reset(before)
    exported.finish(trace)
    assert len(exported.spans) == MOST_STEPS + 1
