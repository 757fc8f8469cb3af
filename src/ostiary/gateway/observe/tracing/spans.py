"""A span that has ended, as it is sent to a collector. Made by `trace`, encoded by `otlp`. Values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ostiary.gateway.observe.tracing.trace_context import TraceContext

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
