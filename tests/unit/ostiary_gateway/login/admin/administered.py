"""A login with an administrator who may do everything, for the tests of the administration area."""

from __future__ import annotations

import re
from typing import Any

from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.recent_decisions import RecentDecisions
from ostiary_gateway.replicas.decision_feed import DecisionFeed
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import Browser, Gateway, Make, Says, text_of

ALLOWED, DENIED = Decision(Verdict.ALLOW, "rule 1"), Decision(Verdict.DENY, "no rule")


class AllowsRoot:
    """Allows *root* everything, until it has `ended`."""

    ended = False

    async def authorize(self, attributes: Attributes) -> Decision:
        allowed = attributes.user.username == "root" and not self.ended
        return Decision(Verdict.ALLOW if allowed else Verdict.NO_OPINION, "rule of root" if allowed else "")

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


class Administered:
    """`gateway`, its `recent` decisions, and `root` in a browser."""

    def __init__(self, make: Make, clock: FakeClock, **parts: Any) -> None:
        self.policy = AllowsRoot()
        self.recent = RecentDecisions(clock=clock)
        self.feed = DecisionFeed(self.recent)
        self.clock = clock
        self.authorizer = Authorizer([Link("policy", self.policy)], clock=clock, cache_ttl=0)
        self.gateway: Gateway = make(Says(UserInfo("root")), authorizer=self.authorizer, decisions=self.feed, **parts)
        self.root = Browser(self.gateway)

    async def page(self, target: str) -> str:
        answer = await self.root.get(target)
        assert answer.status == 200, text_of(answer)
        return text_of(answer)

    def decide(self, decision_id: str, user: str = "ann", *, allowed: bool = True, **info: Any) -> None:
        assert self.recent.is_watched
        attributes = Attributes(UserInfo(user, groups=("dev",)), request_info(**info))
        decision = ALLOWED if allowed else DENIED
        self.recent.record(decision_id, attributes, decision, seconds=0.002 if allowed else None)


def request_info(**changes: Any) -> RequestInfo:
    values = {"verb": "list", "path": "/api/v1/pods", "resource": "pods", "upstream": "cluster", **changes}
    return RequestInfo(method="GET", is_resource=bool(values["resource"]), **values)


def next_page(page: str) -> str | None:
    match = re.search(r'rel="next" href="([^"]+)"', page)
    return None if match is None else match[1].replace("&amp;", "&")
