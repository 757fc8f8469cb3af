"""Remembers what follows from the very bytes of a head, so that a repeated request is neither parsed nor looked up.

The engine asks it to remember a head that comes for the second time. The result lies with the head itself
(`RequestHead.known`), which `http1.request_head.KnownHeads` keeps and bounds. No token is kept: its digest is enough.
"""

from __future__ import annotations

from ostiary.gateway.authenticate.tokens_in_use import TokenInUse
from ostiary.gateway.http1.headers import Scanned
from ostiary.gateway.request.stages import OpenPath, Passage, RequestPlan

# How many heads with the same request line are remembered per ruling: some clients put something new into each.
MOST_HEADS = 8


class RememberedHead:
    """What follows from a head: the plan of a token, or an open path. It is good for `made_by` alone."""

    __slots__ = ("made_by", "open_path", "plan", "scanned", "token")

    def __init__(
        self,
        made_by: RememberedHeads,
        scanned: Scanned,
        token: TokenInUse | None = None,
        plan: RequestPlan | None = None,
        open_path: OpenPath | None = None,
    ) -> None:
        self.made_by, self.scanned, self.token, self.plan, self.open_path = made_by, scanned, token, plan, open_path


class RememberedHeads:
    """The heads that one engine has worked out. Another engine, with another configuration, believes none of them."""

    def remember_plan(self, passage: Passage, token: TokenInUse, plan: RequestPlan) -> None:
        request = passage.exchange.request
        if token.is_application:
            # When its session ends, the headers say whether the browser can be led to sign in: they must be there.
            return
        if plan.upstream is not None and plan.heads < MOST_HEADS and not request.upgrade and not plan.reviews_token:
            plan.heads += 1
            request.known_owner, request.known_size = token.user.username, plan.size
            self._remember(passage, RememberedHead(self, passage.scanned, token, plan))

    def remember_open_path(self, passage: Passage, open_path: OpenPath) -> None:
        if passage.exchange.request.known is None:
            self._remember(passage, RememberedHead(self, passage.scanned, open_path=open_path))

    def _remember(self, passage: Passage, head: RememberedHead) -> None:
        request = passage.exchange.request
        request.known = head
        # What is kept holds no token: the digest says as much to us, and nothing to others.
        request.headers = []
        passage.scanned.authorization = None
