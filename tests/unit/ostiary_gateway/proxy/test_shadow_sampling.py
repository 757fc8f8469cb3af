"""Which requests are compared with the cluster: a share, so many a second, and only what the policy has decided."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.cached_decision import CachedDecision, OutOfScope
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.context import NO_PLAN
from ostiary_gateway.proxy.shadow_sampling import ShadowQuestion, ShadowSampler
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.proxy.gateways import configured

INFO = RequestInfo("get", "GET", "/api/v1/pods", is_resource=True, resource="pods")
ALLOWED = CachedDecision(Verdict.ALLOW, "because")


class Chosen:
    """What a sampler chose; full, it takes nothing more."""

    def __init__(self, folder: Path, **shadow: Any) -> None:
        server = {"name": "k", "server": "http://127.0.0.1:1", "attributes": "kubernetes", "identity": "none"}
        config = configured(
            folder, "", upstreams=[{**server, "shadow": shadow}, {**server, "name": "o", "prefix": "/o"}]
        )
        self.clock, self.metrics = FakeClock(), Metrics()
        loop = asyncio.get_running_loop()
        self.upstream, self.other = (Upstream(each, loop, self.clock) for each in config.upstreams)
        self.questions: list[ShadowQuestion] = []
        self.full = False
        dice = random.Random(1).random
        self.sampler = ShadowSampler([self.upstream, self.other], self._take, self.metrics, self.clock, dice)
        self.plan = replace(
            NO_PLAN, ruling=ALLOWED, info=INFO, user=UserInfo("alice"), upstream=self.upstream, required=(INFO,)
        )

    def _take(self, question: ShadowQuestion) -> bool:
        if not self.full:
            self.questions.append(question)
        return not self.full

    def consider(self, times: int = 1, **changes: Any) -> int:
        """How many more were chosen."""
        before = len(self.questions)
        for number in range(times):
            self.sampler.consider(f"id-{number}", replace(self.plan, **changes))
        return len(self.questions) - before

    def count(self, outcome: str) -> float:
        return self.metrics.shadow_reviews.values.get(("k", outcome), 0)


@pytest.mark.parametrize(("share", "least", "most"), [(1, 10_000, 10_000), (0.5, 4_800, 5_200), (0.01, 70, 130)])
async def test_as_many_are_chosen_as_the_share_says(tmp_path: Path, share: float, least: int, most: int) -> None:
    chosen = Chosen(tmp_path, share=share, perSecond=100_000)
    assert least <= chosen.consider(10_000) <= most


async def test_no_more_than_so_many_a_second_are_asked_about(tmp_path: Path) -> None:
    chosen = Chosen(tmp_path, share=1, perSecond=5)
    assert (chosen.consider(20), chosen.count("dropped")) == (5, 15)
    chosen.clock.advance(1)
    assert chosen.consider(20) == 5
    chosen.clock.advance(3600)
    assert chosen.consider(20) == 5


async def test_what_finds_no_room_is_dropped_and_counted(tmp_path: Path) -> None:
    chosen = Chosen(tmp_path, share=1)
    chosen.full = True
    assert (chosen.consider(3), chosen.count("dropped")) == (0, 3)


async def test_what_the_policy_has_not_decided_is_left_out(tmp_path: Path) -> None:
    """The scope of a token, a public path, somebody who may not impersonate: the cluster knows nothing of these."""
    chosen = Chosen(tmp_path, share=1)
    beyond = OutOfScope(Verdict.DENY, "beyond this token's scope", scope="get nodes")
    assert chosen.consider(ruling=beyond) == 0
    assert chosen.consider(public=True) == 0
    assert chosen.consider(required=()) == 0
    assert chosen.count("left_out") == 3


async def test_other_upstreams_and_our_own_api_are_not_compared(tmp_path: Path) -> None:
    chosen = Chosen(tmp_path, share=1)
    assert chosen.consider(upstream=chosen.other) == 0
    assert chosen.consider(upstream=None) == 0
    assert chosen.metrics.shadow_reviews.values == {}


async def test_a_refusal_that_looks_like_a_missing_object_is_compared_as_a_refusal(tmp_path: Path) -> None:
    chosen = Chosen(tmp_path, share=1)
    assert chosen.consider(ruling=CachedDecision(Verdict.NO_OPINION, "", hidden=True)) == 1
    (question,) = chosen.questions
    assert (question.ruling.allowed, question.required, question.user.username) == (False, (INFO,), "alice")
