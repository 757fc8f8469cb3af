"""Whatever happens in whatever order: never more is stored than counted, and in the end it is what a list says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from ostiary_gateway.interfaces.admission import (
    Admission,
    Hold,
    UpstreamAnswer,
    WriteOutcome,
    WriteRequest,
    WriteResult,
)
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.providers.object_quota import charging
from ostiary_gateway.providers.object_quota.admission import ObjectQuota
from ostiary_gateway.providers.object_quota.settings import ObjectQuotaSettings
from ostiary_gateway.providers.object_quota.subjects import QuotaSubject
from ostiary_gateway.providers.object_quota.tally import SPAN_SECONDS, Amounts
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.providers.object_quota.test_admission import field_sum, pods
from tests.unit.ostiary_gateway.providers.object_quota.upstreams import StoredObjects, pod, write

NAMES = ("a", "b", "c")
SUBJECT = QuotaSubject("two", "cluster", "team")
MOST_PODS, MOST_CPU = 2, 8

VERBS = ("create", "create", "update", "patch", "delete")


def any_step(random: Random) -> tuple[Any, ...]:
    change = (random.choice(VERBS), random.choice(NAMES), random.randint(0, 6))
    some_request = random.randint(0, 9)
    return random.choice(
        (
            ("whole", *change),
            ("begin", *change),
            # Which of those under way the upstream does, and which is settled how.
            ("do", some_request),
            ("settle", some_request, random.choice(("told", "told", "unknown", "lost"))),
            ("time", random.choice((0.5, 2.0, 130.0))),
            # A list takes a while, in which other things happen.
            ("list",),
            ("begin list",),
            ("end list",),
            random.choice((("restart",), ("list",))),
        )
    )


@dataclass
class UnderWay:
    request: WriteRequest
    hold: Hold
    began_at: float
    result: WriteResult | None = None


@dataclass
class World:
    clock: FakeClock = field(default_factory=FakeClock)
    upstream: StoredObjects = field(default_factory=StoredObjects)
    under_way: list[UnderWay] = field(default_factory=list)
    listing: asyncio.Task[bool] | None = None

    def __post_init__(self) -> None:
        self.counts = MemoryCounts(clock=self.clock)
        self.start_worker()

    def start_worker(self) -> None:
        limit = pods(MOST_PODS, field_sum(str(MOST_CPU)))
        self.quota = ObjectQuota(ObjectQuotaSettings((limit,)), clock=self.clock, counts=self.counts, name="objects")

    async def step(self, what: str, *details: Any) -> None:
        match what, details:
            case "begin", (verb, name, cpu):
                await self.begin(verb, name, cpu)
            case "whole", (verb, name, cpu):
                if await self.begin(verb, name, cpu):
                    each = self.under_way.pop()
                    await each.hold.settle(self.upstream.serve(each.request))
            case "do", (number,) if self.under_way:
                each = self.under_way[number % len(self.under_way)]
                # No request takes longer than a span.
                if self.clock.monotonic() < each.began_at + SPAN_SECONDS:
                    each.result = each.result or self.upstream.serve(each.request)
            case "settle", (number, how) if self.under_way:
                await self.settle(self.under_way.pop(number % len(self.under_way)), how)
            case "time", (seconds,):
                self.clock.advance(seconds=seconds)
            case "list", ():
                await self.end_list()
                await self.list_if_known()
            case "begin list", ():
                await self.begin_list()
            case "end list", ():
                await self.end_list()
            case "restart", ():
                # A worker dies with all that it held. What is counted lives on, and so does what reached the upstream.
                await self.end_list()
                self.under_way = []
                self.start_worker()

    async def begin(self, verb: str, name: str, cpu: int) -> bool:
        body = None if verb == "delete" else pod(name, cpu)
        request = write(verb, body, name="" if verb == "create" else name)
        if self.listing is not None and not await self.has_room():
            # It would wait for the list.
            await self.end_list()
        result = await self.quota.reserve(request, self.upstream)
        if not isinstance(result, Admission | UpstreamAnswer):
            self.under_way.append(UnderWay(request, result, self.clock.monotonic()))
            return True
        return False

    async def has_room(self) -> bool:
        counted = await self.counted()
        return counted is not None and counted[0] < 1000 * MOST_PODS and counted[1] <= 1000 * (MOST_CPU - 6)

    async def begin_list(self) -> None:
        if self.listing is None and await self.counted() is not None:
            self.upstream.gate.clear()
            self.upstream.reached.clear()
            self.listing = asyncio.create_task(self.quota._reconciliation.list_now(SUBJECT, self.upstream))
            await self.upstream.reached.wait()

    async def end_list(self) -> None:
        if self.listing is not None:
            self.upstream.gate.set()
            await self.listing
            self.listing = None

    async def list_if_known(self) -> None:
        if await self.counted() is not None:
            await self.quota._reconciliation.list_now(SUBJECT, self.upstream)

    async def settle(self, each: UnderWay, how: str) -> None:
        if how == "lost":
            return
        if how == "told":
            await each.hold.settle(each.result or WriteResult(WriteOutcome.NOT_DONE))
        else:
            await each.hold.settle(WriteResult(WriteOutcome.UNKNOWN))

    def stored(self) -> Amounts:
        cpus = [each["spec"]["containers"][0]["resources"]["requests"]["cpu"] for each in self.upstream.stored.values()]
        return 1000 * len(cpus), 1000 * sum(cpus)

    async def counted(self) -> Amounts | None:
        tally = (await self.quota._tallies.look(SUBJECT)).tally
        return None if tally is None else tally.total


async def run(world: World, sequence: list[tuple[Any, ...]]) -> None:
    for what, *details in sequence:
        await world.step(what, *details)
        stored, counted = world.stored(), await world.counted()
        assert counted is None or all(more >= less for more, less in zip(counted, stored, strict=True)), (what, details)
        assert stored[0] <= 1000 * MOST_PODS
        assert stored[1] <= 1000 * MOST_CPU
    await world.end_list()
    for each in world.under_way:
        await each.hold.settle(each.result or WriteResult(WriteOutcome.NOT_DONE))
    for _ in range(4):
        world.clock.advance(seconds=SPAN_SECONDS + 1)
        await world.list_if_known()
    assert await world.counted() in (None, world.stored())


async def test_the_count_is_never_too_low_and_ends_in_what_a_list_says(subtests: pytest.Subtests) -> None:
    """S71."""
    for seed in range(30):
        with subtests.test(seed=seed), pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(charging, "ATTEMPT_SECONDS", 0)
            random = Random(seed)
            await run(World(), [any_step(random) for _ in range(300)])
