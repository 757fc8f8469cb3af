"""W3C Trace Context: reads ``traceparent`` and ``tracestate`` of a request, and writes them for an upstream. Pure.

https://www.w3.org/TR/trace-context/. What cannot be read counts as absent, as the specification says: a broken header
must never fail a request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

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
