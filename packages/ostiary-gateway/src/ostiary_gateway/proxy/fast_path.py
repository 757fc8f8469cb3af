"""Fast path: forwards a request whose headers and plan are cached, with a single object per request.

    pass_on  ->  FastForward, instead of an Exchange  ->  complete response: written, counted, recorded
                 `-- anything else: `expand` replaces it by an Exchange, a RequestContext and a ProxiedRequest

The checks, their order, the metrics and the audit events are those of `Engine.handle`. `AllowedAgain` does the same for
external authorization, where the request is not forwarded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.authorization.recent_decisions import RecentDecisions
from ostiary_gateway.http1.client_connection import UpstreamConnection
from ostiary_gateway.http1.exchange import ActiveExchange, Exchange, PassingConnection, Responder
from ostiary_gateway.http1.headers import FilteredHeaders, Headers
from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.http1.response import Framing, UpstreamLost
from ostiary_gateway.limits.limits import Limits, charge_connection
from ostiary_gateway.proxy.builtin_endpoints import OpenPaths
from ostiary_gateway.proxy.context import RequestContext, RequestPlan
from ostiary_gateway.proxy.forwarder import Forwarder
from ostiary_gateway.proxy.head_cache import CachedHead, CachedHeaders, HeadCache
from ostiary_gateway.proxy.plan_cache import Planner
from ostiary_gateway.proxy.plan_templates import FilledGaps, ObjectPlans
from ostiary_gateway.proxy.proxied_request import ProxiedRequest
from ostiary_gateway.proxy.request_log import RequestLog
from ostiary_gateway.proxy.resolver import NoRoute, RequestResolver

log = logging.getLogger("ostiary.gateway")


class FastForward:
    """A fast-path request in flight. Anything but a complete response expands it into the full path.

    Examples are a partial response, a lost upstream, a client that disconnects or does not read, a revocation, a
    shutdown, or the next tick of the engine. The client's connection uses it as an exchange, the upstream's connection
    as a response handler. If `filled` is set, `plan` is that of another object of the same kind.
    """

    __slots__ = (
        "_unfolded",
        "audit_id",
        "audit_line",
        "close_after",
        "connection",
        "credential",
        "fast_forwards",
        "filled",
        "head",
        "plan",
        "received_at",
        "request",
        "scanned",
        "token",
        "upstream_connection",
    )

    # As an exchange: its request has no body to come, and no response was begun.
    body_complete, head_sent, awaits_continue = True, False, False

    def __init__(
        self,
        fast_forwards: Transits,
        connection: PassingConnection,
        upstream_connection: UpstreamConnection,
        request: RequestHead,
        plan: RequestPlan,
        filled: FilledGaps | None,
        scanned: FilteredHeaders,
        token: CachedToken,
        received_at: float,
        credential: bytes,
        audit_id: str,
        audit_line: bytes,
        head: bytes,
    ) -> None:
        self.fast_forwards, self.connection, self.upstream_connection = fast_forwards, connection, upstream_connection
        self.request, self.plan, self.filled, self.scanned, self.token = request, plan, filled, scanned, token
        self.received_at, self.credential = received_at, credential
        self.audit_id, self.audit_line, self.head = audit_id, audit_line, head
        # Set by the connection if the data that follows is not a valid request.
        self.close_after = False
        self._unfolded: ProxiedRequest[RequestContext] | None = None

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        connection, fast_forwards = self.connection, self.fast_forwards
        # A redirect may have to be rejected, and a 401 may be about the gateway's credential.
        is_odd = status >= 300 and (status < 400 or status == 401)
        if is_odd or self.close_after or connection.draining or fast_forwards.recent.is_watched:
            self.expand().response_whole(status, lines, body)
            return
        # Conclude before writing. If the client does not read, writing a large response makes the connection look for a
        # responder to pause, and the upstream's connection may already serve the next request.
        fast_forwards.conclude(self, status)
        connection.transport.write(b"%b%b\r\n\r\n%b" % (lines, self.audit_line, body))
        connection.finish(self)

    def expand(self) -> ProxiedRequest[RequestContext]:
        """Expand into the objects of the full path. From then on the result handles the request."""
        if self._unfolded is None:
            self._unfolded = self.fast_forwards.expand(self)
        return self._unfolded

    # --- the rest of an exchange and of a receiver ---

    @property
    def responder(self) -> Responder | None:
        """None while the response is being written: the upstream has sent all of it, so there is nothing to pause."""
        return self.expand() if self in self.fast_forwards else None

    def take_responder(self) -> Responder:
        exchange = self.expand().exchange
        responder = exchange.take_responder()
        assert responder is not None
        return responder

    def response_head(self, status: int, headers: Headers, framing: Framing) -> None:
        self.expand().response_head(status, headers, framing)

    def response_informational(self, status: int, headers: Headers) -> None:
        self.expand().response_informational(status, headers)

    def response_body(self, data: bytes) -> None:
        self.expand().response_body(data)

    def response_flush(self) -> None:
        """Data was read, but no complete head yet."""

    def response_end(self, trailers: Headers) -> None:
        self.expand().response_end(trailers)

    def response_switched(self, rest: bytes) -> None:
        self.expand().response_switched(rest)

    def upstream_lost(self, error: UpstreamLost) -> None:
        self.expand().upstream_lost(error)

    def upstream_full(self) -> None:
        self.expand().upstream_full()

    def upstream_ready(self) -> None:
        self.expand().upstream_ready()


class Transits:
    """The fast path of one engine. Holds its requests in flight."""

    def __init__(
        self,
        heads: HeadCache,
        object_plans: ObjectPlans,
        planner: Planner,
        authenticator: TokenAuthenticator,
        limits: Limits,
        records: RequestLog,
        forwarder: Forwarder,
        open_paths: OpenPaths,
        questions: RequestResolver,
        recent: RecentDecisions,
        *,
        monotonic: Callable[[], float],
        audit_id: Callable[[], str],
    ) -> None:
        self._heads, self._object_plans, self._planner = heads, object_plans, planner
        self._recall = authenticator.recall
        authenticator.in_use.unlisted.add(self)
        self.recent = recent
        self._limits, self._records, self._forwarder, self._open_paths = limits, records, forwarder, open_paths
        self._questions = questions
        self._monotonic, self._audit_id = monotonic, audit_id
        self._open: dict[FastForward, None] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def __contains__(self, fast_forward: object) -> bool:
        return fast_forward in self._open

    def pass_on(self, connection: PassingConnection, request: RequestHead, own_lines: bytes) -> ActiveExchange | None:
        """Forward *request*, which has no body and was read completely; None if it needs the full path.

        *own_lines* are header lines of this request only. Never raises: what fails here also fails in `Engine.handle`,
        which sends the response and records it. If it returns None, nothing was counted.
        """
        try:
            head = request.known
            now = self._monotonic()
            if type(head) is CachedHead:
                plan = head.plan
                if plan is None or not plan.passes_on or head.made_by is not self._heads:
                    return None
                token = self._recall(head.scanned.digest, now)
                if token is None or token is not head.token:
                    return None
                if not self._planner.is_valid(plan, now) and not self._planner.is_current(plan, token.user, now):
                    return None
                return self._start(connection, request, plan, None, head.scanned, token, now, own_lines)
            if head is None and request.raw:
                return self._pass_on_like_another(connection, request, own_lines, now)
        except Exception as error:
            log.debug("a request could not be passed on", extra={"cause": type(error).__name__}, exc_info=error)
        return None

    def _pass_on_like_another(
        self, connection: PassingConnection, request: RequestHead, own_lines: bytes, now: float
    ) -> ActiveExchange | None:
        """Forward a request with cached header lines whose target differs only in the name of an object."""
        headers = None if request.block is None else request.block.known
        if type(headers) is not CachedHeaders or headers.made_by is not self._heads:
            return None
        scanned = headers.scanned
        token = self._recall(scanned.digest, now)
        if token is None or token is not headers.token or scanned.impersonate:
            return None
        filled = self._object_plans.fill_alike(token.known_user, request, now)
        if filled is None:
            filled = self._fill(token, request, now)
        if filled is None or not filled.plan.passes_on:
            return None
        return self._start(connection, request, filled.plan, filled, scanned, token, now, own_lines)

    def _fill(self, token: CachedToken, request: RequestHead, now: float) -> FilledGaps | None:
        """Resolve the route of a target whose shape is not cached yet."""
        if self._open_paths.find(request.target) is not None:
            return None
        try:
            location = self._questions.locate(request)
        except (NoRoute, ValueError):
            return None
        return self._object_plans.fill(token.known_user, request, location, now)

    def _start(
        self,
        connection: PassingConnection,
        request: RequestHead,
        plan: RequestPlan,
        filled: FilledGaps | None,
        scanned: FilteredHeaders,
        token: CachedToken,
        now: float,
        own_lines: bytes,
    ) -> ActiveExchange | None:
        share, upstream = plan.share, plan.upstream
        assert upstream is not None, "it passes requests on"
        if connection.account is not share and share.connections >= share.most_connections:
            return None
        try:
            credential = upstream.credential()
        except OSError:
            return None
        audit_id = self._audit_id()
        audit_line = b"Audit-Id: " + audit_id.encode()
        line = plan.head if filled is None else filled.head()
        head = b"".join(
            (line, credential, scanned.lines, own_lines, connection.forwarded_lines, audit_line, b"\r\n\r\n")
        )
        upstream_connection = upstream.pool.idle()
        if upstream_connection is None:
            return None
        if not self._limits.take_seat(share):
            upstream.pool.give_back(upstream_connection)
            return None
        # Everything taken from here on must be given back.
        if connection.account is not share:
            charge_connection(connection, share)
        fast_forward = FastForward(
            self,
            connection,
            upstream_connection,
            request,
            plan,
            filled,
            scanned,
            token,
            now,
            credential,
            audit_id,
            audit_line,
            head,
        )
        self._open[fast_forward] = None
        upstream_connection.patience = timeout = upstream.response_timeout
        upstream_connection.deadline = connection.loop.time() + timeout
        try:
            upstream_connection.send(head, fast_forward, is_head=False)
        except Exception:
            fast_forward.expand().give_up()
            raise
        # If the upstream cannot accept a long head immediately, `upstream_full` has expanded the request.
        return fast_forward if fast_forward in self._open else fast_forward.expand().exchange

    def conclude(self, fast_forward: FastForward, status: int) -> None:
        """The complete response was received: release the permit, count and record the request."""
        del self._open[fast_forward]
        plan, filled = fast_forward.plan, fast_forward.filled
        share, upstream = plan.share, plan.upstream
        assert upstream is not None
        if upstream.failures:
            upstream.record_answer()
        if not share.exempt:
            share.leave_seat()
        self._records.conclude_transit(
            plan,
            fast_forward.scanned,
            fast_forward.connection.remote_address,
            status,
            audit_id=fast_forward.audit_id,
            received_at=fast_forward.received_at,
            middle="" if filled is None else filled.audit_middle(),
        )

    def expand(self, fast_forward: FastForward) -> ProxiedRequest[RequestContext]:
        """Create the `Exchange`, `RequestContext` and `ProxiedRequest` of the full path."""
        del self._open[fast_forward]
        connection, plan, token = fast_forward.connection, fast_forward.plan, fast_forward.token
        exchange = Exchange(connection, fast_forward.request)
        exchange.body_complete, exchange.close_after = True, fast_forward.close_after
        exchange.audit_id = fast_forward.audit_id
        ctx = RequestContext(exchange, fast_forward.received_at, fast_forward.audit_id)
        ctx.scanned, ctx.token = fast_forward.scanned, token
        ctx.plan = plan if fast_forward.filled is None else fast_forward.filled.whole_plan()
        ctx.leave = plan.share.leave
        connection.replace(fast_forward, exchange)
        return self._forwarder.take_over(
            ctx,
            fast_forward.head,
            fast_forward.audit_line,
            fast_forward.credential,
            fast_forward.upstream_connection,
            fast_forward,
        )

    def list_all(self) -> None:
        """Expand all in-flight requests. They are then listed as active requests and as streams of their tokens."""
        for fast_forward in list(self._open):
            fast_forward.expand()


# Request, client address and time -> identity, or empty.
AllowAgain = Callable[[RequestHead, str, float], bytes]
# The status that the other proxy receives. The status of the upstream is unknown.
_ALLOWED = 200


def never_again(request: RequestHead, address: str, now: float) -> bytes:
    """For an engine without this shortcut."""
    return b""


class AllowedAgain:
    """External authorization of requests with a cached head. They end immediately and need no exchange."""

    def __init__(
        self,
        heads: HeadCache,
        authenticator: TokenAuthenticator,
        planner: Planner,
        limits: Limits,
        records: RequestLog,
        recent: RecentDecisions,
    ) -> None:
        self._heads, self._planner, self._limits, self._records = heads, planner, limits, records
        self._recall = authenticator.recall
        self._recent = recent

    def identity_of(self, request: RequestHead, address: str, now: float) -> bytes:
        """Return the identity of the user of an allowed *request* for the calling proxy; empty if it is not cached.

        *address* is the client's, *now* the time of arrival. If the result is empty, nothing was counted or recorded,
        and the request takes the full path. Only the full path denies requests.
        """
        head = request.known
        if type(head) is not CachedHead or head.made_by is not self._heads or self._recent.is_watched:
            return b""
        plan = head.plan
        # `identity` is empty until the full path has determined it.
        if plan is None or not plan.at_once or not plan.identity:
            return b""
        token = self._recall(head.scanned.digest, now)
        if token is None or token is not head.token or not self._planner.is_current(plan, token.user, now):
            return b""
        share = plan.share
        if share.connections > share.most_connections or not self._limits.pass_through(share):
            return b""
        self._records.conclude_at_once(plan, head.scanned, address, _ALLOWED, received_at=now)
        return plan.identity
