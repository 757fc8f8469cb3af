"""Remembers what follows from the very bytes of a head, so that a repeated request is neither parsed nor looked up.

The engine asks it to remember a head that comes for the second time. The result lies with the head itself
(`RequestHead.known`), which `http1.request_head.KnownHeads` keeps and bounds. No token is kept: its digest is enough.
"""

from __future__ import annotations

from ostiary.core.bounded_cache import seen_recently
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.http1.headers import FilteredHeaders
from ostiary_gateway.proxy.context import RequestContext, RequestPlan, UnauthenticatedRoute

# How many heads with the same request line are remembered per ruling: some clients put something new into each.
MOST_HEADS = 8
# How many header lines of a user's latest requests are told apart: kubectl sends others with each of its commands.
MOST_HEADERS = 32


class CachedHead:
    """What follows from a head: the plan of a token, or an open path. It is good for `made_by` alone."""

    __slots__ = ("made_by", "open_path", "plan", "scanned", "token")

    def __init__(
        self,
        made_by: HeadCache,
        scanned: FilteredHeaders,
        token: CachedToken | None = None,
        plan: RequestPlan | None = None,
        open_path: UnauthenticatedRoute | None = None,
    ) -> None:
        self.made_by, self.scanned, self.token, self.plan, self.open_path = made_by, scanned, token, plan, open_path


class CachedHeaders:
    """What follows from header lines alone, with whatever request line they come: whose they are, and what goes on."""

    __slots__ = ("made_by", "scanned", "token")

    def __init__(self, made_by: HeadCache, scanned: FilteredHeaders, token: CachedToken) -> None:
        self.made_by, self.scanned, self.token = made_by, scanned, token


class HeadCache:
    """The heads that one engine has worked out. Another engine, with another configuration, believes none of them.

    *passes_traces*: every header of `http1.headers.TRACES` goes on to the upstream, so heads that differ only in these
    may share one.
    """

    def __init__(self, *, passes_traces: bool = True) -> None:
        self._passes_traces = passes_traces

    def remember_plan(self, ctx: RequestContext, token: CachedToken, plan: RequestPlan) -> None:
        request = ctx.exchange.request
        if token.is_application:
            # When its session ends, the headers say whether the browser can be led to sign in: they must be there.
            return
        if plan.upstream is not None and plan.heads < MOST_HEADS and not request.upgrade and not plan.reviews_token:
            if request.digest and not seen_recently(request.digest, plan.latest_heads, MOST_HEADS):
                return
            if self._leave_traces(ctx):
                plan.heads += 1
                request.known_owner, request.known_size = token.user.username, plan.size
                self._remember(ctx, CachedHead(self, ctx.scanned, token, plan))

    def remember_headers(self, ctx: RequestContext, token: CachedToken) -> None:
        """Remember whose these header lines are, if they came before, for requests with other request lines."""
        request = ctx.exchange.request
        block = request.block
        if block is None or block.known is not None or not self._passes_traces or token.is_application:
            return
        latest = token.known_user.latest_headers
        # Of a keyed hash: equal ones of different lines would only have one of them remembered a little sooner.
        if seen_recently(hash(block.digest), latest, MOST_HEADERS) and self._leave_traces(ctx):
            block.known, block.known_owner = CachedHeaders(self, ctx.scanned, token), token.user.username
            ctx.scanned.authorization = None

    def remember_open_path(self, ctx: RequestContext, open_path: UnauthenticatedRoute) -> None:
        if ctx.exchange.request.known is None and self._leave_traces(ctx):
            self._remember(ctx, CachedHead(self, ctx.scanned, open_path=open_path))

    def _leave_traces(self, ctx: RequestContext) -> bool:
        """Make the trace ids lines of this request alone: what is kept is for others, too. False if that cannot be."""
        request, scanned = ctx.exchange.request, ctx.scanned
        if not request.traces:
            return True
        if not self._passes_traces or not scanned.lines.endswith(request.traces):
            return False
        scanned.lines = scanned.lines[: -len(request.traces)]
        ctx.exchange.own_lines, request.traces = request.traces, b""
        return True

    def _remember(self, ctx: RequestContext, head: CachedHead) -> None:
        request = ctx.exchange.request
        request.known = head
        request.takes_traces = self._passes_traces and request.block is not None
        # What is kept holds no token: the digest says as much to us, and nothing to others.
        request.headers = []
        ctx.scanned.authorization = None
