"""Allows a request whose very head came before, where it is not forwarded but only answered.

Called by the doors of other proxies, in the place of `Engine.handle`. What is checked for other requests is checked
here, in the same order: the token, whether the decision still holds, the limits. The request is counted and recorded as
others are. There is only no exchange and no passage: it is over at once, so nobody waits for it or cuts it.
"""

from __future__ import annotations

from collections.abc import Callable

from ostiary.gateway.admit.limits import Limits
from ostiary.gateway.authenticate.authenticator import TokenAuthenticator
from ostiary.gateway.authorize.recent_decisions import RecentDecisions
from ostiary.gateway.http1.request_head import RequestHead
from ostiary.gateway.request.records import RequestRecords
from ostiary.gateway.request.remembered.heads import RememberedHead, RememberedHeads
from ostiary.gateway.request.remembered.plans import Planner

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
        heads: RememberedHeads,
        authenticator: TokenAuthenticator,
        planner: Planner,
        limits: Limits,
        records: RequestRecords,
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
        if type(head) is not RememberedHead or head.made_by is not self._heads or self._recent.is_watched:
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
