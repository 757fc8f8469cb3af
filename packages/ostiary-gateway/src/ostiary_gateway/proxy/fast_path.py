"""Passes on a request that is like an earlier one, in one object from its head to its whole answer.

Asked by a client's connection before it makes an exchange. Most requests need nothing of what an exchange, a passage
and a `ProxiedRequest` can do besides: their token is in memory, their plan holds, a connection to the upstream is idle,
and the answer comes in one read. What is checked for other requests is checked here, in the same order; they are
counted and recorded as others are. A request of any other kind is left to `Engine.handle`, and nothing was counted
then.

    pass_on  ->  Transit, in the place of an exchange  ->  the whole answer: written, counted, recorded
                 `-- anything else: it becomes an exchange, a ctx and a `Proxied` (`unfold`), and goes on as these

What may happen else: an answer in parts, a lost upstream, a client that goes away or does not read, a revocation, a
shutdown, or that it takes until the next tick.
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
    """One request on its way, as long as nothing happens but that its whole answer comes.

    Its connection takes it for an exchange, and the upstream's connection for the receiver of the answer. Where
    `filled` is set, `plan` is that of an object of the same kind.
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

    # Of an exchange: nothing of its request is still to come, and nothing was answered.
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
        # Set by the connection if what follows on it cannot be read.
        self.close_after = False
        self._unfolded: ProxiedRequest[RequestContext] | None = None

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        connection, fast_forwards = self.connection, self.fast_forwards
        # A redirect may have to be refused, and a 401 may be about us.
        is_odd = status >= 300 and (status < 400 or status == 401)
        if is_odd or self.close_after or connection.draining or fast_forwards.recent.is_watched:
            self.expand().response_whole(status, lines, body)
            return
        # Over before it is written: a large answer to a client that does not read has the connection ask for a
        # responder within the write, and what would slow the upstream down is for the next request already.
        fast_forwards.conclude(self, status)
        connection.transport.write(b"%b%b\r\n\r\n%b" % (lines, self.audit_line, body))
        connection.finish(self)

    def expand(self) -> ProxiedRequest[RequestContext]:
        """Become what other requests are: from here on, the result is asked in its place."""
        if self._unfolded is None:
            self._unfolded = self.fast_forwards.expand(self)
        return self._unfolded

    # --- the rest of an exchange and of a receiver ---

    @property
    def responder(self) -> Responder | None:
        """None while its answer is written, which nobody can slow down any more."""
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
        """Something has come, but no whole head yet."""

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
    """Those of one engine, which has made the heads and plans."""

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
        """Pass on *request*, which has no body, and came whole with *own_lines*; None if that is not for us.

        It never raises: what fails here fails in `Engine.handle`, too, which answers and records it.
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
        """These header lines came before, and the request line with another name."""
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
        """Find out where the request goes, which no request like it has told yet."""
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
        # From here on something must be given back.
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
        # A long head leaves at once, and the upstream may have no room for it: then it is no transit any more.
        return fast_forward if fast_forward in self._open else fast_forward.expand().exchange

    def conclude(self, fast_forward: FastForward, status: int) -> None:
        """Its whole answer is there: give its place back, count it and record it."""
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
        """Make the exchange, the passage and the `ProxiedRequest` that others have from the beginning."""
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
        """What is still on its way becomes what others know how to look at, and is a stream of its token."""
        for fast_forward in list(self._open):
            fast_forward.expand()


# Allows a request whose very head came before, where it is not forwarded but only answered.
#
# Called by the doors of other proxies, in the place of `Engine.handle`. What is checked for other requests is checked
# here, in the same order: the token, whether the decision still holds, the limits. The request is counted and recorded
# as others are. There is only no exchange and no passage: it is over at once, so nobody waits for it or cuts it.

# A request, the address of its client, and the time: the identity, or nothing.
AllowAgain = Callable[[RequestHead, str, float], bytes]
# What the proxy is told; the answer of the upstream is not known.
_ALLOWED = 200


def never_again(request: RequestHead, address: str, now: float) -> bytes:
    """Of an engine whose requests all go the same way."""
    return b""


class AllowedAgain:
    """Of one engine, which has made the heads and plans."""

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
        """What the proxy is told about the user of an allowed *request*, whose client is at *address*.

        *now* is when the request came, this very moment. Empty if that does not follow from what is remembered. Nothing
        was counted or recorded then, and the request goes the way of others: only there is it refused.
        """
        head = request.known
        if type(head) is not CachedHead or head.made_by is not self._heads or self._recent.is_watched:
            return b""
        plan = head.plan
        # Until a proxy was told about the user once, there is nothing to tell it again.
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
