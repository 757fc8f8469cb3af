"""Authorization providers that a test decides for, and a chain of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Hashable
from typing import Any, cast

from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.config.provider import OnError

ALLOW = Decision(Verdict.ALLOW, "because")
DENY = Decision(Verdict.DENY, "never")
PASS = Decision(Verdict.NO_OPINION, "not mine")
HIDDEN = Decision(Verdict.NO_OPINION, hidden=True)

KNOWN = "system:authenticated"
ALICE = UserInfo("alice", groups=("dev", KNOWN))
POD = RequestInfo("get", "GET", "/api/v1/namespaces/x/pods/p", True, "", "", "v1", "x", "pods", "", "p")
GET_POD = Attributes(ALICE, POD)


class AtOnce:
    """Decides by *rule* without waiting, and counts."""

    def __init__(self, rule: Callable[[Attributes], Any] | Decision) -> None:
        self.rule = rule if callable(rule) else lambda attributes: rule
        self.asked: list[Attributes] = []
        self.groups: Any = frozenset({"dev"})

    def decide(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        return cast(Decision, self.rule(attributes))

    async def authorize(self, attributes: Attributes) -> Decision:
        raise AssertionError("the gateway calls decide")

    async def relevant_groups(self) -> frozenset[str]:
        if isinstance(self.groups, Exception):
            raise self.groups
        return cast("frozenset[str]", self.groups)


class Slow:
    """Answers when it is told to; by default at once, but asynchronously."""

    def __init__(self, rule: Callable[[Attributes], Any] | Decision) -> None:
        self.rule = rule if callable(rule) else lambda attributes: rule
        self.asked: list[Attributes] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def authorize(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        await self.gate.wait()
        decision = self.rule(attributes)
        return cast(Decision, await decision if inspect.isawaitable(decision) else decision)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset({"ops"})


class RevisedSlow(Slow):
    revision = 1


class Keyed(AtOnce):
    def cache_key(self, attributes: Attributes) -> Hashable:
        return attributes.user.username, attributes.request.verb


def raises(error: BaseException) -> Callable[[Attributes], Any]:
    def rule(attributes: Attributes) -> Any:
        raise error

    return rule


def chain(*providers: Any, on_error: OnError = OnError.DENY, **options: Any) -> Authorizer:
    links = [Link(f"p{number}", provider, on_error) for number, provider in enumerate(providers)]
    return Authorizer(links, **{"timeout": 5.0, **options})
