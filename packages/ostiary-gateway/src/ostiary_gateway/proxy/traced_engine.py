"""The engine that records the steps of each request as spans. An app with tracing has it in the place of `Engine`.

The order of the steps is that of `Engine`; here each step says when it begins. Choosing between the two when the
configuration is loaded keeps the plain engine free of every question whether a request is traced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from ostiary.core.redaction import without_tokens
from ostiary_gateway.audit.source_ips import Network, source_ips
from ostiary_gateway.authentication.token_cache import TokenInUse
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.headers import Action, HeaderFilter, Headers, Scanned
from ostiary_gateway.observability.tracer import Tracer
from ostiary_gateway.observability.tracing import (
    CURRENT,
    PARENT,
    STATE,
    AttributeValue,
    SpanAttributes,
    SpanKind,
    Trace,
    TraceContext,
    read_context,
)
from ostiary_gateway.proxy.builtin_endpoints import OpenPaths, OwnApis, first_segment
from ostiary_gateway.proxy.context import NO_PLAN, Handler, OpenPath, Passage, Question, RequestPlan
from ostiary_gateway.proxy.engine import Engine, EngineParts
from ostiary_gateway.proxy.fast_path import never_again
from ostiary_gateway.proxy.head_cache import RememberedHead
from ostiary_gateway.proxy.request_log import RequestRecords
from ostiary_gateway.proxy.request_tasks import RequestTasks, Work
from ostiary_gateway.proxy.resolver import Location
from ostiary_gateway.proxy.target import path_of
from ostiary_gateway.wire.audit_policy import REDACTED, redacted_uri

# Takes the trace context out of a request's headers: the upstream gets ours in its place.
#
# Used by the traced engine in the place of `http1.headers.HeaderFilter`.


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


# A request on its way, with its trace; and what the span of a request says about it, by the semantic conventions.
#
# Used by the traced engine. https://opentelemetry.io/docs/specs/semconv/http/http-spans/. Nothing that is secret goes
# into a span: no query, no header but ``User-Agent``, and the user's name only where that is configured.

FORWARD = "forward"
# The methods that the conventions name; any other could be invented by a caller.
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"))
OTHER_METHOD = "_OTHER"
LONGEST_TEXT = 1024


class TracedPassage(Passage):
    __slots__ = ("_traces", "trace")

    def __init__(
        self, exchange: Exchange, received_at: float, audit_id: str, trace: Trace, traces: RequestTraces
    ) -> None:
        super().__init__(exchange, received_at, audit_id)
        self.trace = trace
        self._traces = traces

    @property
    def monotonic(self) -> Callable[[], float]:
        return self._traces.tracer.monotonic

    def enter(self, step: str, kind: SpanKind = SpanKind.INTERNAL) -> None:
        """The next step begins now."""
        if self.trace.recorded:
            self.trace.enter(step, self.monotonic(), kind)

    def finish(self, code: int, plan: RequestPlan | None = None) -> None:
        """The request is over, with the status that the client saw (0: none). Only the first call counts.

        *plan* is given where it is not the one that the request was admitted with.
        """
        if not self.trace.finished and self.trace.recorded:
            self._traces.finish(self, self.trace, code, plan or self.plan)


def as_traced(passage: Passage) -> TracedPassage:
    """A passage of the traced engine, which makes no others."""
    return cast(TracedPassage, passage)


@dataclass(frozen=True, slots=True)
class RequestTraces:
    """Finishes the traces of one engine."""

    tracer: Tracer
    trusted_proxies: Sequence[Network]
    user_names: bool

    def finish(self, passage: Passage, trace: Trace, code: int, plan: RequestPlan) -> None:
        method = _method(passage)
        name = "HTTP" if method == OTHER_METHOD else method
        forward = trace.steps[-1] if trace.step == FORWARD else None
        if forward is not None:
            # As the conventions name the span of a client; that it is one tells it from the server's.
            forward.name = name
            forward.attributes.update(_upstream_attributes(plan, method, code))
            forward.failed = code >= 400
        attributes = self._attributes(passage, plan, method, code)
        self.tracer.finish(trace, name, passage.received_at, attributes, failed=code >= 500)

    def _attributes(self, passage: Passage, plan: RequestPlan, method: str, code: int) -> SpanAttributes:
        exchange, scanned = passage.exchange, passage.scanned
        request, connection = exchange.request, exchange.connection
        forwarded = [line.decode("latin-1") for line in scanned.forwarded_for]
        client = source_ips(connection.remote_address, forwarded_for=forwarded, trusted=self.trusted_proxies)[0]
        attributes: dict[str, AttributeValue] = {
            "http.request.method": method,
            "url.scheme": "https" if connection.transport.is_tls else "http",
            "url.path": redacted_uri(request.target.partition(b"?")[0].decode("latin-1"))[:LONGEST_TEXT],
            "network.protocol.version": "1.0" if request.http10 else "1.1",
            "network.peer.address": connection.remote_address,
            "client.address": client,
            "ostiary.audit_id": passage.audit_id,
            **_host(request.host),
            **_status(code, failed=code >= 500),
        }
        if scanned.user_agent:
            attributes["user_agent.original"] = _text(scanned.user_agent)
        if plan is not NO_PLAN:
            attributes |= self._decision_attributes(plan)
        return attributes

    def _decision_attributes(self, plan: RequestPlan) -> dict[str, AttributeValue]:
        """The annotations of the audit event. The id joins trace, audit event and ``ostiary-gateway explain``."""
        info = plan.info
        attributes: dict[str, AttributeValue] = {
            "ostiary.decision": plan.ruling.verdict.value,
            "ostiary.verb": info.verb,
        }
        for name, value in (
            ("ostiary.api_group", info.api_group),
            ("ostiary.resource", "/".join(filter(None, (info.resource, info.subresource)))),
            ("ostiary.namespace", info.namespace),
            ("ostiary.upstream", "" if plan.upstream is None else plan.upstream.name),
            ("enduser.id", plan.user.username if self.user_names else ""),
        ):
            if value:
                attributes[name] = value
        return attributes


def _method(passage: Passage) -> str:
    method = passage.exchange.request.method.decode("latin-1")
    return method if method in METHODS else OTHER_METHOD


def _upstream_attributes(plan: RequestPlan, method: str, code: int) -> dict[str, AttributeValue]:
    upstream = plan.upstream
    assert upstream is not None
    if not upstream.settings.server:
        # Another proxy carries it: nothing was sent from here.
        return {"http.request.method": method, "ostiary.upstream": upstream.name, **_status(code, failed=code >= 400)}
    address = upstream.pool.address
    return {
        "http.request.method": method,
        "url.scheme": "http" if address.tls is None else "https",
        "server.address": address.unix_path or address.host,
        **({} if address.unix_path else {"server.port": address.port}),
        "ostiary.upstream": upstream.name,
        **_status(code, failed=code >= 400),
    }


def _status(code: int, *, failed: bool) -> dict[str, AttributeValue]:
    if code == 0:
        return {"error.type": "client_gone"}
    return {"http.response.status_code": code, **({"error.type": str(code)} if failed else {})}


def _host(host: bytes) -> dict[str, AttributeValue]:
    """What the client calls us."""
    name, colon, port = _text(host).rpartition(":")
    if not colon or not port.isdecimal():
        return {"server.address": _text(host)}
    return {"server.address": name, "server.port": int(port)}


def _text(value: bytes) -> str:
    # Cut at last: the rest of a token would not look like one.
    return without_tokens(value.decode("latin-1"), REDACTED)[:LONGEST_TEXT]


AUTHENTICATE, AUTHORIZE, ADMIT, ANSWER = "authenticate", "authorize", "admit", "answer"
_OPEN_PATHS = {b"/auth": "sign-in", b"/webhooks": "review"}


class TracedRecords(RequestRecords):
    """A request that is counted is over, and so is its trace."""

    def conclude(self, passage: Passage, code: int, *, message: str = "") -> None:
        super().conclude(passage, code, message=message)
        as_traced(passage).finish(code)

    def count(self, passage: Passage, code: int, plan: RequestPlan | None = None) -> float:
        now = super().count(passage, code, plan)
        as_traced(passage).finish(code, plan)
        return now


class TracedTasks(RequestTasks):
    """A request whose client is gone, or that fails inside the gateway, may end without being counted."""

    async def _run_and_answer(self, work: Work, passage: Passage) -> None:
        await super()._run_and_answer(work, passage)
        # What is forwarded is concluded by the forwarder.
        if passage.exchange.gone and as_traced(passage).trace.step != FORWARD:
            as_traced(passage).finish(0)

    def fail(self, passage: Passage, error: Exception) -> None:
        super().fail(passage, error)
        as_traced(passage).finish(500)


class TracedOpenPaths(OpenPaths):
    def serve(self, path: OpenPath, passage: Passage) -> None:
        request, trace = passage.exchange.request, as_traced(passage).trace
        segment = first_segment(path_of(request.target, request.host))
        as_traced(passage).enter(_OPEN_PATHS.get(segment, ANSWER))
        # The tasks that serve it see it: what a sign-in does inside is timed by `traced_step`.
        before = CURRENT.set((trace, as_traced(passage).monotonic))
        try:
            super().serve(path, passage)
        finally:
            CURRENT.reset(before)


class TracedOwnApis(OwnApis):
    async def serve(self, handler: Handler, passage: Passage) -> None:
        as_traced(passage).enter(ANSWER)
        await super().serve(handler, passage)


class TracedEngine(Engine):
    """Serves requests and records them. *traces* says what becomes of the records."""

    records_type = TracedRecords
    tasks_type = TracedTasks
    open_paths_type = TracedOpenPaths
    own_apis_type = TracedOwnApis

    def __init__(self, parts: EngineParts, loop: asyncio.AbstractEventLoop, traces: RequestTraces) -> None:
        super().__init__(parts, loop)
        self._traces = traces
        self._forward_plain, self._forward = self._forward, self._forward_traced
        # A request that is allowed in one step, or passed on, would have no trace.
        self.allow_again, self.pass_on = never_again, None

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        head = request.known
        remembered = head if type(head) is RememberedHead and head.made_by is self._heads else None
        incoming = read_context(request.headers) if remembered is None else _incoming(remembered.scanned)
        trace = self._traces.tracer.start(incoming, exchange.connection.remote_address)
        passage = TracedPassage(exchange, self._monotonic(), self._audit_id(), trace, self._traces)
        exchange.audit_id = passage.audit_id
        trace.enter(AUTHENTICATE, passage.received_at)
        try:
            if remembered is None:
                self._begin(passage)
            else:
                self._begin_again(passage, remembered)
        except Exception as error:
            self._tasks.fail(passage, error)

    def _ask(self, passage: Passage, token: TokenInUse) -> None:
        as_traced(passage).enter(AUTHORIZE)
        as_traced(passage).trace.mark("ostiary.cached", True)
        super()._ask(passage, token)

    def _decide(self, passage: Passage, token: TokenInUse, question: Question, location: Location) -> None:
        as_traced(passage).trace.mark("ostiary.cached", False)
        super()._decide(passage, token, question, location)

    async def _decide_as_another(self, passage: Passage, token: TokenInUse, question: Question) -> None:
        as_traced(passage).trace.mark("ostiary.cached", False)
        await super()._decide_as_another(passage, token, question)

    def _admit(self, passage: Passage, token: TokenInUse, plan: RequestPlan) -> None:
        if as_traced(passage).trace.step == AUTHENTICATE:
            # A head that came before, with its decision: that this still holds has just been checked.
            as_traced(passage).enter(AUTHORIZE)
            as_traced(passage).trace.mark("ostiary.cached", True)
        as_traced(passage).trace.mark("ostiary.decision", plan.ruling.verdict.value)
        as_traced(passage).enter(ADMIT)
        super()._admit(passage, token, plan)

    def _forward_traced(self, passage: Passage) -> None:
        as_traced(passage).enter(FORWARD, SpanKind.CLIENT)
        scanned = passage.scanned
        # For this request alone: a head that is remembered shares what was read from it.
        scanned_copy = TracedScanned(scanned, None)
        scanned_copy.lines += as_traced(passage).trace.upstream_lines()
        passage.scanned = scanned_copy
        try:
            self._forward_plain(passage)
        finally:
            passage.scanned = scanned


def _incoming(scanned: Scanned) -> TraceContext | None:
    return scanned.incoming if isinstance(scanned, TracedScanned) else None
