"""Starts the trace of a request, and makes spans of it when the request is over.

Called by the traced engine. A request continues the trace that it names only if whoever sent it is trusted with that;
any other begins a trace of its own, with a link to the one that was named. Whether it is recorded is decided here, at
its beginning: as the trace that it continues was, or by chance (`ratio`).
"""

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
    # Never all zeros but once in 2**64: no reason to look.
    return os.urandom(8).hex()


class Tracer:
    """Of one configuration. *trusts* says whether the trace of a peer, known by its address, is continued."""

    def __init__(self, export: Export, clock: Clock, *, ratio: float, trusts: Callable[[str], bool]) -> None:
        self._export = export
        self._clock = clock
        self.monotonic = clock.monotonic
        self._trusts = trusts
        # Of the last eight bytes of a trace's id, which are random (trace-context-2, section 2.2.2.3).
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
        """The request is over: export its span and those of its steps. Only the first call counts."""
        if trace.finished or not trace.recorded:
            return
        trace.finished = True
        ended = self.monotonic()
        # From the monotonic clock to the time of day, once for all spans of a request, so that they fit together.
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
