"""Traces of requests: W3C Trace Context, spans, and the recording of a request's steps.

Loaded even if tracing is not configured, for `traced_step`. Times are of the monotonic clock unless noted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple

# W3C Trace Context: https://www.w3.org/TR/trace-context/

PARENT, STATE = b"traceparent", b"tracestate"
# A longer state is dropped as a whole (section 3.3.1.5), because a truncated one would have another meaning.
LONGEST_STATE = 512
MOST_MEMBERS = 32

_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_SAMPLED = 0x01


class TraceContext(NamedTuple):
    """A span as propagated between services. The ids are in hex."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""

    def lines(self) -> bytes:
        """Return the ``traceparent`` and ``tracestate`` header lines."""
        parent = f"traceparent: 00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}\r\n"
        return (parent + f"tracestate: {self.state}\r\n" if self.state else parent).encode("ascii")


def read_context(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """Return the parent span from the headers of a request; None if there is none.

    Invalid headers count as absent, as the specification requires: a broken header must never fail a request.
    """
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        # Comparing the length first is cheaper than lower-casing every name.
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


# Ended spans, as sent to a collector.

AttributeValue = str | int | bool
SpanAttributes = Mapping[str, AttributeValue]


class SpanKind(Enum):
    """Kind of a span, with the numbers of OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


@dataclass(frozen=True, slots=True)
class Span:
    """An ended span. `began` and `ended` are Unix times. `failed` follows the OpenTelemetry semantic conventions."""

    context: TraceContext
    parent_id: str
    name: str
    kind: SpanKind
    began: float
    ended: float
    attributes: SpanAttributes = field(default_factory=dict)
    links: tuple[TraceContext, ...] = ()
    failed: bool = False


# The recording of a request in flight.

# A sign-in calls a few providers. More steps than this are a bug, which must not exhaust the memory.
MOST_STEPS = 64


class TracedStep:
    """A step of a request, or a nested part of the step `inside`."""

    __slots__ = ("attributes", "began", "ended", "failed", "inside", "kind", "name", "span_id")

    def __init__(self, name: str, began: float, span_id: str, kind: SpanKind, inside: TracedStep | None) -> None:
        self.name, self.began, self.span_id, self.kind, self.inside = name, began, span_id, kind, inside
        self.ended: float | None = None
        self.failed = False
        self.attributes: dict[str, AttributeValue] = {}


class Trace:
    """The recorded steps of one request. A step ends when the next one begins.

    `context` is the request's span, a child of the span `parent_id`. `link` is the context of an untrusted peer.
    """

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
        """Name of the current step; empty before the first."""
        outer = self._outer()
        return "" if outer is None else outer.name

    def enter(self, name: str, at: float, kind: SpanKind = SpanKind.INTERNAL) -> None:
        """Begin the next step and end the current one."""
        outer = self._outer()
        if outer is not None and outer.ended is None:
            outer.ended = at
        self._begin(name, at, kind, None)

    def mark(self, name: str, value: AttributeValue) -> None:
        """Set an attribute of the current step."""
        outer = self._outer()
        if outer is not None:
            outer.attributes[name] = value

    def begin_inside(self, name: str, at: float) -> TracedStep | None:
        """Begin a nested part of the current step. Returns None if it is not recorded."""
        return self._begin(name, at, SpanKind.INTERNAL, self._outer())

    def upstream_lines(self) -> bytes:
        """Return the header lines by which an upstream continues the trace as a child of the current step."""
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
    """Trace of a request that is not sampled. The ids are still propagated, so that the upstream can join the trace."""

    __slots__ = ()

    recorded = False

    def enter(self, name: str, at: float, kind: SpanKind = SpanKind.INTERNAL) -> None:
        pass

    def mark(self, name: str, value: AttributeValue) -> None:
        pass

    def begin_inside(self, name: str, at: float) -> TracedStep | None:
        return None


# The traced request that the current task serves, and the clock of its tracer.
CURRENT: ContextVar[tuple[Trace, Callable[[], float]] | None] = ContextVar("ostiary_trace", default=None)


@contextmanager
def traced_step(name: str, **attributes: AttributeValue) -> Iterator[None]:
    """Record the body of the ``with`` statement as a nested step, if the request is traced.

    For calls that take milliseconds, such as those of a sign-in to an identity provider. The names of *attributes* get
    our prefix: ``provider`` becomes ``ostiary.provider``.
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
        # Only its type: the text may contain data from the user or the IdP.
        step.attributes["error.type"] = type(error).__name__
        raise
    finally:
        step.ended = monotonic()
