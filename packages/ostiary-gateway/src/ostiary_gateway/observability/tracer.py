"""Starts the trace of a request, and exports its spans when the request ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ostiary.core.clock import Clock
from ostiary_gateway.observability.tracing import (
    Span,
    SpanAttributes,
    SpanKind,
    Trace,
    TraceContext,
    TracedStep,
    UnsampledTrace,
)

Export = Callable[[Sequence[Span]], None]


def new_span_id() -> str:
    # All zeros is invalid, but its probability of 2**-64 is not worth a check.
    return os.urandom(8).hex()


class Tracer:
    """Makes the traces of one configuration.

    A request continues the trace of its ``traceparent`` only if *trusts* accepts the address of the peer. Any other
    request starts a new trace with a link to the one in its header. The sampling decision is made at the start: that of
    the continued trace, or random with *ratio*.
    """

    def __init__(self, export: Export, clock: Clock, *, ratio: float, trusts: Callable[[str], bool]) -> None:
        self._export = export
        self._clock = clock
        self.monotonic = clock.monotonic
        self._trusts = trusts
        # Compared with the last eight bytes of a trace id, which are random (trace-context-2, section 2.2.2.3).
        self._bound = round(ratio * 2**64)

    def start(self, incoming: TraceContext | None, address: str) -> Trace:
        if incoming is not None and self._trusts(address):
            context = incoming._replace(span_id=new_span_id())
            kind = Trace if context.sampled else UnsampledTrace
            return kind(context, new_span_id, parent_id=incoming.span_id)
        ids = os.urandom(24)
        sampled = int.from_bytes(ids[8:16], "big") < self._bound
        context = TraceContext(ids[:16].hex(), ids[16:].hex(), sampled)
        return (Trace if sampled else UnsampledTrace)(context, new_span_id, link=incoming)

    def finish(self, trace: Trace, name: str, began: float, attributes: SpanAttributes, *, failed: bool) -> None:
        """Export the spans of the request and its steps. Later calls for the same trace do nothing."""
        if trace.finished or not trace.recorded:
            return
        trace.finished = True
        ended = self.monotonic()
        # One offset from the monotonic to the wall clock for all spans of a request, so that they are consistent.
        offset = self._clock.now().timestamp() - ended
        links = () if trace.link is None else (trace.link,)
        spans = [
            Span(
                trace.context,
                trace.parent_id,
                name,
                SpanKind.SERVER,
                began + offset,
                ended + offset,
                attributes,
                links,
                failed,
            )
        ]
        spans.extend(_span_of(step, trace, ended, offset) for step in trace.steps)
        self._export(spans)


def _span_of(step: TracedStep, trace: Trace, ended: float, offset: float) -> Span:
    return Span(
        trace.context._replace(span_id=step.span_id),
        trace.context.span_id if step.inside is None else step.inside.span_id,
        step.name,
        step.kind,
        step.began + offset,
        (ended if step.ended is None else step.ended) + offset,
        step.attributes,
        failed=step.failed,
    )
