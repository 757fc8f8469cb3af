"""A request on its way, with its trace; and what the span of a request says about it, by the semantic conventions.

Used by the traced engine. https://opentelemetry.io/docs/specs/semconv/http/http-spans/. Nothing that is secret goes
into a span: no query, no header but ``User-Agent``, and the user's name only where that is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from ostiary.core.secrets.redact import without_tokens
from ostiary.gateway.audit.source_ips import Network, source_ips
from ostiary.gateway.http1.exchange import Exchange
from ostiary.gateway.observe.tracing.spans import AttributeValue, SpanAttributes, SpanKind
from ostiary.gateway.observe.tracing.trace import Trace
from ostiary.gateway.observe.tracing.tracer import Tracer
from ostiary.gateway.request.stages import NO_PLAN, Passage, RequestPlan
from ostiary.wire.audit.redaction import REDACTED, redacted_uri

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
        """What the audit event says as well: by the id, trace, audit event and ``ostiary explain`` are joined."""
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
