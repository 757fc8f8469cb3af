"""What is recorded of one request while it is on its way: its steps, each with its times.

Made by `tracer` when a request comes. The traced engine enters one step after the other, and each ends where the next
begins; what is inside a step, such as a question to an identity provider, is timed with `traced_step`. Times are of
the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

from ostiary.gateway.observe.tracing.spans import AttributeValue, SpanKind
from ostiary.gateway.observe.tracing.trace_context import TraceContext

# A sign-in asks a few providers. More than this is a mistake somewhere, and must not take memory.
MOST_STEPS = 64


class TracedStep:
    """One step, or a part of one (`inside`)."""

    __slots__ = ("attributes", "began", "ended", "failed", "inside", "kind", "name", "span_id")

    def __init__(self, name: str, began: float, span_id: str, kind: SpanKind, inside: TracedStep | None) -> None:
        self.name, self.began, self.span_id, self.kind, self.inside = name, began, span_id, kind, inside
        self.ended: float | None = None
        self.failed = False
        self.attributes: dict[str, AttributeValue] = {}


class Trace:
    """One request. `context` is its own span, below the span `parent_id`; `link` is one that it only mentions."""

    __slots__ = ("_new_id", "context", "finished", "link", "parent_id", "steps")

    recorded: ClassVar[bool] = True

    def __init__(
        self,
        context: TraceContext,
        new_id: Callable[[], str],
        *,
        parent_id: str = "",
        link: TraceContext | None = None,
    ) -> None:
        self.context = context
        self.parent_id = parent_id
        self.link = link
        self.steps: list[TracedStep] = []
        self.finished = False
        self._new_id = new_id

    @property
    def step(self) -> str:
        """The name of the step that it is in."""
        outer = self._outer()
        return "" if outer is None else outer.name

    def enter(self, name: str, at: float, kind: SpanKind = SpanKind.INTERNAL) -> None:
        """The next step begins; the one before is over."""
        outer = self._outer()
        if outer is not None and outer.ended is None:
            outer.ended = at
        self._begin(name, at, kind, None)

    def mark(self, name: str, value: AttributeValue) -> None:
        """Say something about the step that it is in."""
        outer = self._outer()
        if outer is not None:
            outer.attributes[name] = value

    def begin_inside(self, name: str, at: float) -> TracedStep | None:
        """A part of the step that it is in; None if nothing is recorded."""
        return self._begin(name, at, SpanKind.INTERNAL, self._outer())

    def upstream_lines(self) -> bytes:
        """The header lines by which an upstream continues the trace below the step that it is in."""
        outer = self._outer()
        span_id = self._new_id() if outer is None else outer.span_id
        return self.context._replace(span_id=span_id).lines()

    def _begin(self, name: str, at: float, kind: SpanKind, inside: TracedStep | None) -> TracedStep | None:
        if len(self.steps) >= MOST_STEPS or self.finished:
            return None
        step = TracedStep(name, at, self._new_id(), kind, inside)
        self.steps.append(step)
        return step

    def _outer(self) -> TracedStep | None:
        return next((step for step in reversed(self.steps) if step.inside is None), None)


class UnsampledTrace(Trace):
    """A request of which nothing is recorded. Its upstream is still told the ids, so that others may join theirs."""

    __slots__ = ()

    recorded = False

    def enter(self, name: str, at: float, kind: SpanKind = SpanKind.INTERNAL) -> None:
        pass

    def mark(self, name: str, value: AttributeValue) -> None:
        pass

    def begin_inside(self, name: str, at: float) -> TracedStep | None:
        return None


# The request that the running task works for, where one is traced; and the clock of its tracer.
CURRENT: ContextVar[tuple[Trace, Callable[[], float]] | None] = ContextVar("ostiary_trace", default=None)


@contextmanager
def traced_step(name: str, **attributes: AttributeValue) -> Iterator[None]:
    """Time what is done inside, if the request is traced. For sign-ins, which take milliseconds and more.

    The names of *attributes* are ours: ``provider`` becomes ``ostiary.provider``.
    """
    current = CURRENT.get()
    if current is None:
        yield
        return
    trace, monotonic = current
    step = trace.begin_inside(name, monotonic())
    if step is None:
        yield
        return
    step.attributes.update((f"ostiary.{key}", value) for key, value in attributes.items())
    try:
        yield
    except BaseException as error:
        step.failed = True
        # Only its type: the text may contain what a person or an identity system has sent.
        step.attributes["error.type"] = type(error).__name__
        raise
    finally:
        step.ended = monotonic()
