"""An `Engine` that records the steps of each request as OpenTelemetry spans.

It replaces `Engine` when tracing is configured. Choosing at load time keeps checks for tracing out of `Engine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from ostiary.core.redaction import without_tokens
from ostiary_gateway.audit.source_ips import Network, source_ips
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.headers import Action, FilteredHeaders, HeaderFilter, Headers
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
from ostiary_gateway.proxy.context import (
    NO_PLAN,
    Handler,
    RequestAttributes,
    RequestContext,
    RequestPlan,
    UnauthenticatedRoute,
)
from ostiary_gateway.proxy.engine import Engine, EngineServices
from ostiary_gateway.proxy.fast_path import never_again
from ostiary_gateway.proxy.head_cache import CachedHead
from ostiary_gateway.proxy.request_log import RequestLog
from ostiary_gateway.proxy.request_tasks import RequestTasks, Work
from ostiary_gateway.proxy.resolver import ResolvedRoute
from ostiary_gateway.proxy.target import path_of
from ostiary_gateway.wire.audit_policy import REDACTED, redacted_uri


class TracedScanned(FilteredHeaders):
    """Filtered headers with the incoming trace context. Cached with the head."""

    __slots__ = ("incoming",)

    def __init__(self, scanned: FilteredHeaders, incoming: TraceContext | None) -> None:
        # Copy field by field: this runs for every request.
        self.lines = scanned.lines
        self.authorization = scanned.authorization
        self.user_agent = scanned.user_agent
        self.impersonate = scanned.impersonate
        self.forwarded_for = scanned.forwarded_for
        self.digest = scanned.digest
        self.origin = scanned.origin
        self.incoming = incoming


class TracedHeaderFilter(HeaderFilter):
    def scan(self, headers: Headers) -> FilteredHeaders:
        return TracedScanned(super().scan(headers), read_context(headers))

    def _classify(self, name: bytes) -> Action:
        return Action.DROP if name.lower() in (PARENT, STATE) else super()._classify(name)


# The attributes follow https://opentelemetry.io/docs/specs/semconv/http/http-spans/. A span contains no secrets: no
# query, no header but ``User-Agent``, and the username only if configured.

FORWARD = "forward"
# The methods of the semantic conventions. Any other may be invented by a client.
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"))
OTHER_METHOD = "_OTHER"
LONGEST_TEXT = 1024


class TracedContext(RequestContext):
    """A `RequestContext` that also records the steps of its request as spans."""

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
        """Begin the next step."""
        if self.trace.recorded:
            self.trace.enter(step, self.monotonic(), kind)

    def finish(self, code: int, plan: RequestPlan | None = None) -> None:
        """Finish the trace with the status that the client received (0: none). Only the first call has an effect.

        *plan* is given if it differs from the plan that the request was admitted with.
        """
        if not self.trace.finished and self.trace.recorded:
            self._traces.finish(self, self.trace, code, plan or self.plan)


def as_traced(ctx: RequestContext) -> TracedContext:
    """Return *ctx* as the type that the traced engine creates."""
    return cast(TracedContext, ctx)


@dataclass(frozen=True, slots=True)
class RequestTraces:
    """Finishes the traces of the requests of one engine."""

    tracer: Tracer
    trusted_proxies: Sequence[Network]
    user_names: bool

    def finish(self, ctx: RequestContext, trace: Trace, code: int, plan: RequestPlan) -> None:
        method = _method(ctx)
        name = "HTTP" if method == OTHER_METHOD else method
        forward = trace.steps[-1] if trace.step == FORWARD else None
        if forward is not None:
            # The conventions name client and server spans alike; the span kind distinguishes them.
            forward.name = name
            forward.attributes.update(_upstream_attributes(plan, method, code))
            forward.failed = code >= 400
        attributes = self._attributes(ctx, plan, method, code)
        self.tracer.finish(trace, name, ctx.received_at, attributes, failed=code >= 500)

    def _attributes(self, ctx: RequestContext, plan: RequestPlan, method: str, code: int) -> SpanAttributes:
        exchange, scanned = ctx.exchange, ctx.scanned
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
            "ostiary.audit_id": ctx.audit_id,
            **_host(request.host),
            **_status(code, failed=code >= 500),
        }
        if scanned.user_agent:
            attributes["user_agent.original"] = _text(scanned.user_agent)
        if plan is not NO_PLAN:
            attributes |= self._decision_attributes(plan)
        return attributes

    def _decision_attributes(self, plan: RequestPlan) -> dict[str, AttributeValue]:
        """Return the annotations of the audit event.

        The audit id joins trace, audit event and ``ostiary-gateway explain``.
        """
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


def _method(ctx: RequestContext) -> str:
    method = ctx.exchange.request.method.decode("latin-1")
    return method if method in METHODS else OTHER_METHOD


def _upstream_attributes(plan: RequestPlan, method: str, code: int) -> dict[str, AttributeValue]:
    upstream = plan.upstream
    assert upstream is not None
    if not upstream.settings.server:
        # Another proxy forwards the request: the gateway sends nothing.
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
    """Return the host that the client addressed."""
    name, colon, port = _text(host).rpartition(":")
    if not colon or not port.isdecimal():
        return {"server.address": _text(host)}
    return {"server.address": name, "server.port": int(port)}


def _text(value: bytes) -> str:
    # Truncate last: a truncated token would not be recognized as a token.
    return without_tokens(value.decode("latin-1"), REDACTED)[:LONGEST_TEXT]


AUTHENTICATE, AUTHORIZE, ADMIT, ANSWER = "authenticate", "authorize", "admit", "answer"
_OPEN_PATHS = {b"/auth": "sign-in", b"/webhooks": "review"}


class TracedRecords(RequestLog):
    """Finishes the trace when a request is counted."""

    def conclude(self, ctx: RequestContext, code: int, *, message: str = "") -> None:
        super().conclude(ctx, code, message=message)
        as_traced(ctx).finish(code)

    def count(self, ctx: RequestContext, code: int, plan: RequestPlan | None = None) -> float:
        now = super().count(ctx, code, plan)
        as_traced(ctx).finish(code, plan)
        return now


class TracedTasks(RequestTasks):
    """Finishes traces of requests that may end uncounted: the client is gone, or the gateway fails."""

    async def _run_and_answer(self, work: Work, ctx: RequestContext) -> None:
        await super()._run_and_answer(work, ctx)
        # The forwarder concludes forwarded requests.
        if ctx.exchange.gone and as_traced(ctx).trace.step != FORWARD:
            as_traced(ctx).finish(0)

    def fail(self, ctx: RequestContext, error: Exception) -> None:
        super().fail(ctx, error)
        as_traced(ctx).finish(500)


class TracedOpenPaths(OpenPaths):
    def serve(self, path: UnauthenticatedRoute, ctx: RequestContext) -> None:
        request, trace = ctx.exchange.request, as_traced(ctx).trace
        segment = first_segment(path_of(request.target, request.host))
        as_traced(ctx).enter(_OPEN_PATHS.get(segment, ANSWER))
        # Inherited by the tasks that serve the route, so that `traced_step` can time parts of a sign-in.
        before = CURRENT.set((trace, as_traced(ctx).monotonic))
        try:
            super().serve(path, ctx)
        finally:
            CURRENT.reset(before)


class TracedOwnApis(OwnApis):
    async def serve(self, handler: Handler, ctx: RequestContext) -> None:
        as_traced(ctx).enter(ANSWER)
        await super().serve(handler, ctx)


class TracedEngine(Engine):
    """Serves requests and traces them. *traces* finishes the traces."""

    records_type = TracedRecords
    tasks_type = TracedTasks
    open_paths_type = TracedOpenPaths
    own_apis_type = TracedOwnApis

    def __init__(self, parts: EngineServices, loop: asyncio.AbstractEventLoop, traces: RequestTraces) -> None:
        super().__init__(parts, loop)
        self._traces = traces
        self._forward_plain, self._forward = self._forward, self._forward_traced
        # The fast paths record no trace.
        self.allow_again, self.pass_on = never_again, None

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        head = request.known
        remembered = head if type(head) is CachedHead and head.made_by is self._heads else None
        incoming = read_context(request.headers) if remembered is None else _incoming(remembered.scanned)
        trace = self._traces.tracer.start(incoming, exchange.connection.remote_address)
        ctx = TracedContext(exchange, self._monotonic(), self._audit_id(), trace, self._traces)
        exchange.audit_id = ctx.audit_id
        trace.enter(AUTHENTICATE, ctx.received_at)
        try:
            if remembered is None:
                self._begin(ctx)
            else:
                self._begin_again(ctx, remembered)
        except Exception as error:
            self._tasks.fail(ctx, error)

    def _ask(self, ctx: RequestContext, token: CachedToken) -> None:
        as_traced(ctx).enter(AUTHORIZE)
        as_traced(ctx).trace.mark("ostiary.cached", True)
        super()._ask(ctx, token)

    def _decide(
        self, ctx: RequestContext, token: CachedToken, question: RequestAttributes, location: ResolvedRoute
    ) -> None:
        as_traced(ctx).trace.mark("ostiary.cached", False)
        super()._decide(ctx, token, question, location)

    async def _decide_as_another(self, ctx: RequestContext, token: CachedToken, question: RequestAttributes) -> None:
        as_traced(ctx).trace.mark("ostiary.cached", False)
        await super()._decide_as_another(ctx, token, question)

    def _admit(self, ctx: RequestContext, token: CachedToken, plan: RequestPlan) -> None:
        if as_traced(ctx).trace.step == AUTHENTICATE:
            # A cached head with its decision, which was just revalidated.
            as_traced(ctx).enter(AUTHORIZE)
            as_traced(ctx).trace.mark("ostiary.cached", True)
        as_traced(ctx).trace.mark("ostiary.decision", plan.ruling.verdict.value)
        as_traced(ctx).enter(ADMIT)
        super()._admit(ctx, token, plan)

    def _forward_traced(self, ctx: RequestContext) -> None:
        as_traced(ctx).enter(FORWARD, SpanKind.CLIENT)
        scanned = ctx.scanned
        # Copied for this request: the cached head shares the original.
        scanned_copy = TracedScanned(scanned, None)
        scanned_copy.lines += as_traced(ctx).trace.upstream_lines()
        ctx.scanned = scanned_copy
        try:
            self._forward_plain(ctx)
        finally:
            ctx.scanned = scanned


def _incoming(scanned: FilteredHeaders) -> TraceContext | None:
    return scanned.incoming if isinstance(scanned, TracedScanned) else None
