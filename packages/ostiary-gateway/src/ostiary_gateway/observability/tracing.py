"""Traces of requests: what is recorded of each step, and how it gets to a collector.

Only `trace` is loaded where tracing is not configured, for `traced_step`; and only `otlp` needs the extra ``otel``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple

# W3C Trace Context: reads ``traceparent`` and ``tracestate`` of a request, and writes them for an upstream. Pure.
#
# https://www.w3.org/TR/trace-context/. What cannot be read counts as absent, as the specification says: a broken header
# must never fail a request.

PARENT, STATE = b"traceparent", b"tracestate"
# A longer state is dropped as a whole (section 3.3.1.5): half of one would say something else.
LONGEST_STATE = 512
MOST_MEMBERS = 32

_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_SAMPLED = 0x01


class TraceContext(NamedTuple):
    """One span of one trace, as others are told of it. The ids are in hex."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""

    def lines(self) -> bytes:
        """The header lines that say so."""
        parent = f"traceparent: 00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}\r\n"
        return (parent + f"tracestate: {self.state}\r\n" if self.state else parent).encode("ascii")


def read_context(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """The span that a request says it comes from; None if it says none, or not clearly one."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        # Most names are of another length, and comparing that costs less than lowering each.
        if len(name) == len(PARENT) and name.lower() == PARENT:
            parents.append(value)
        elif len(name) == len(STATE) and name.lower() == STATE:
            states.append(value)
    match = _PARENT.fullmatch(parents[0].strip(b" \t")) if len(parents) == 1 else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    is_valid = version != b"ff" and (more is None or version != b"00")
    if not is_valid or not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(trace_id.decode(), span_id.decode(), sampled, _checked_state(states))


def _checked_state(lines: list[bytes]) -> str:
    members = [member.strip(" \t") for member in b",".join(lines).decode("latin-1").split(",")]
    members = [member for member in members if member]
    state = ",".join(members)
    if len(state) > LONGEST_STATE or len(members) > MOST_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return ""
    return state


# A span that has ended, as it is sent to a collector. Made by `trace`, encoded by `otlp`. Values without behaviour.

AttributeValue = str | int | bool
SpanAttributes = Mapping[str, AttributeValue]


class SpanKind(Enum):
    """The numbers are those of OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


@dataclass(frozen=True, slots=True)
class Span:
    """`began` and `ended` are seconds since 1970. `failed` tells that the operation failed, as the conventions say."""

    context: TraceContext
    parent_id: str
    name: str
    kind: SpanKind
    began: float
    ended: float
    attributes: SpanAttributes = field(default_factory=dict)
    links: tuple[TraceContext, ...] = ()
    failed: bool = False


# What is recorded of one request while it is on its way: its steps, each with its times.
#
# Made by `tracer` when a request comes. The traced engine enters one step after the other, and each ends where the next
# begins; what is inside a step, such as a question to an identity provider, is timed with `traced_step`. Times are of
# the monotonic clock.

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
