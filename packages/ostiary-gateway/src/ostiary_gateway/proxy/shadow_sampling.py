"""Sample requests whose decision is compared with the cluster's decision.

    engine (plan found)  ->  consider: samples one of n  ->  bounded queue  ->  `comparison`, in the background

The engine calls `consider` for every authorized request, including those with a cached decision. It only decrements a
counter unless the request is sampled.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ostiary.core.clock import Clock
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.authorization.cached_decision import CachedDecision, OutOfScope
from ostiary_gateway.config.upstream import ShadowSettings
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.context import RequestPlan
from ostiary_gateway.proxy.upstreams import Upstream

DROPPED, LEFT_OUT = "dropped", "left_out"


@dataclass(frozen=True, slots=True)
class ShadowQuestion:
    """A sampled request. `actor` sends it on behalf of `user`."""

    upstream: Upstream
    audit_id: str
    user: UserInfo
    actor: UserInfo | None
    info: RequestInfo
    required: tuple[RequestInfo, ...]
    ruling: CachedDecision
    at: float


Enqueue = Callable[[ShadowQuestion], bool]


class _Share:
    """The sampling state of one upstream: requests left until the next sample, and the rate limit."""

    __slots__ = ("_allowed", "_dice", "_log_of_rest", "_per_second", "_refilled_at", "left")

    def __init__(self, settings: ShadowSettings, dice: Callable[[], float], now: float) -> None:
        self._dice = dice
        self._log_of_rest = math.log1p(-settings.share) if settings.share < 1 else 0.0
        self._per_second = settings.per_second
        self._allowed, self._refilled_at = float(settings.per_second), now
        self.left = self.next_gap()

    def next_gap(self) -> int:
        """Draw the distance to the next sample. Equivalent to one draw per request, but cheaper."""
        if not self._log_of_rest:
            return 1
        return 1 + int(math.log(1.0 - self._dice()) / self._log_of_rest)

    def take(self, now: float) -> bool:
        """Return whether one more sample is within the limit per second."""
        most = float(self._per_second)
        self._allowed = min(most, self._allowed + (now - self._refilled_at) * most)
        self._refilled_at = now
        if self._allowed < 1.0:
            return False
        self._allowed -= 1.0
        return True


class ShadowSampler:
    """Samples requests for the engines of one configuration.

    *dice* returns numbers from 0 (inclusive) to 1 (exclusive).
    """

    def __init__(
        self,
        upstreams: Iterable[Upstream],
        enqueue: Enqueue,
        metrics: Metrics,
        clock: Clock,
        dice: Callable[[], float] = random.random,  # not used for secrets
    ) -> None:
        self._enqueue = enqueue
        self._counter = metrics.shadow_reviews
        self._monotonic = clock.monotonic
        now = clock.monotonic()
        self._shares: dict[Upstream | None, _Share] = {
            upstream: _Share(upstream.settings.shadow, dice, now)
            for upstream in upstreams
            if upstream.settings.shadow is not None
        }

    def consider(self, audit_id: str, plan: RequestPlan) -> None:
        """Count an authorized request, and sample it if it is its turn. Never raises, never waits."""
        share = self._shares.get(plan.upstream)
        if share is None:
            return
        share.left -= 1
        if share.left <= 0:
            share.left = share.next_gap()
            self._choose(share, audit_id, plan)

    def _choose(self, share: _Share, audit_id: str, plan: RequestPlan) -> None:
        upstream = plan.upstream
        assert upstream is not None
        if not _can_be_compared(plan):
            self._counter.inc(upstream.name, LEFT_OUT)
            return
        now = self._monotonic()
        question = ShadowQuestion(upstream, audit_id, plan.user, plan.actor, plan.info, plan.required, plan.ruling, now)
        if not share.take(now) or not self._enqueue(question):
            self._counter.inc(upstream.name, DROPPED)


def _can_be_compared(plan: RequestPlan) -> bool:
    """Whether the provider chain made the decision: it was not queried if the token's scope denied the request."""
    return bool(plan.required) and not plan.public and not isinstance(plan.ruling, OutOfScope)
