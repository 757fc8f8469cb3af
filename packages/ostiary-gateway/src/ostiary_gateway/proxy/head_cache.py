"""Cache the result for identical head bytes, so that a repeated request is neither parsed nor looked up.

A head is cached when it comes for the second time. The entry is attached to the head itself (`RequestHead.known`),
which `http1.request_head.KnownHeads` holds and bounds. Tokens are not stored, only their digests.
"""

from __future__ import annotations

from ostiary.core.bounded_cache import seen_recently
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.http1.headers import FilteredHeaders
from ostiary_gateway.proxy.context import RequestContext, RequestPlan, UnauthenticatedRoute

# Maximum number of cached heads with the same request line per decision: some clients vary every request.
MOST_HEADS = 8
# Number of recent header blocks tracked per user: kubectl sends different headers with each of its commands.
MOST_HEADERS = 32


class CachedHead:
    """The result for a head: the plan of a token, or an unauthenticated route. Valid only in the cache `made_by`."""

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
    """The result for header lines with any request line: the token and the filtered headers."""

    __slots__ = ("made_by", "scanned", "token")

    def __init__(self, made_by: HeadCache, scanned: FilteredHeaders, token: CachedToken) -> None:
        self.made_by, self.scanned, self.token = made_by, scanned, token


class HeadCache:
    """The cached heads of one engine. Entries of another engine, with another configuration, are invalid here.

    *passes_traces*: every header of `http1.headers.TRACES` is forwarded, so heads that differ only in these headers may
    share an entry.
    """

    def __init__(self, *, passes_traces: bool = True) -> None:
        self._passes_traces = passes_traces

    def remember_plan(self, ctx: RequestContext, token: CachedToken, plan: RequestPlan) -> None:
        request = ctx.exchange.request
        if token.is_application:
            # When the session ends, the headers determine whether the browser is redirected to sign in, so keep them.
            return
        if plan.upstream is not None and plan.heads < MOST_HEADS and not request.upgrade and not plan.reviews_token:
            if request.digest and not seen_recently(request.digest, plan.latest_heads, MOST_HEADS):
                return
            if self._leave_traces(ctx):
                plan.heads += 1
                request.known_owner, request.known_size = token.user.username, plan.size
                self._remember(ctx, CachedHead(self, ctx.scanned, token, plan))

    def remember_headers(self, ctx: RequestContext, token: CachedToken) -> None:
        """Cache header lines that were seen before, for requests with other request lines."""
        request = ctx.exchange.request
        block = request.block
        if block is None or block.known is not None or not self._passes_traces or token.is_application:
            return
        latest = token.known_user.latest_headers
        # On a collision, the keyed hash only makes one of the blocks be cached a little earlier.
        if seen_recently(hash(block.digest), latest, MOST_HEADERS) and self._leave_traces(ctx):
            block.known, block.known_owner = CachedHeaders(self, ctx.scanned, token), token.user.username
            ctx.scanned.authorization = None

    def remember_open_path(self, ctx: RequestContext, open_path: UnauthenticatedRoute) -> None:
        if ctx.exchange.request.known is None and self._leave_traces(ctx):
            self._remember(ctx, CachedHead(self, ctx.scanned, open_path=open_path))

    def _leave_traces(self, ctx: RequestContext) -> bool:
        """Move the trace ids to the lines of this request, because the entry is shared.

        Return False if that is impossible.
        """
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
        # Do not store the token: the digest identifies it for us, and is useless to others.
        request.headers = []
        ctx.scanned.authorization = None
