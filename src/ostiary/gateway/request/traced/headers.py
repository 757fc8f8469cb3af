"""Takes the trace context out of a request's headers: the upstream gets ours in its place.

Used by the traced engine in the place of `http1.headers.HeaderFilter`.
"""

from __future__ import annotations

from ostiary.gateway.http1.headers import Action, HeaderFilter, Headers, Scanned
from ostiary.gateway.observe.tracing.trace_context import PARENT, STATE, TraceContext, read_context


class TracedScanned(Scanned):
    """What a request's headers say, with the trace that they name. A head that is remembered keeps it."""

    __slots__ = ("incoming",)

    def __init__(self, scanned: Scanned, incoming: TraceContext | None) -> None:
        # Field by field: it is made for every request.
        self.lines = scanned.lines
        self.authorization = scanned.authorization
        self.user_agent = scanned.user_agent
        self.impersonate = scanned.impersonate
        self.forwarded_for = scanned.forwarded_for
        self.digest = scanned.digest
        self.origin = scanned.origin
        self.incoming = incoming


class TracedHeaderFilter(HeaderFilter):
    def scan(self, headers: Headers) -> Scanned:
        return TracedScanned(super().scan(headers), read_context(headers))

    def _classify(self, name: bytes) -> Action:
        return Action.DROP if name.lower() in (PARENT, STATE) else super()._classify(name)
