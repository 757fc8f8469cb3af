"""Decides again on what is open, and cuts it when its user may no longer do what it was opened for.

    the policy changed, or some seconds have passed  ->  each plan that something open was begun with is decided anew
        allowed: go on   |   not allowed: cut   |   could not ask: go on for `authorization.unconfirmed`, then cut

Kept by the engine, and started by its ticker. It runs beside the requests, a few plans per turn of the loop. After a
reload the new configuration decides on what was opened under the old one, and reads the request as it would read it
now. Revoked tokens and ended sessions are not handled here: `gateway.authenticate` cuts what was opened with them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import islice

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary_gateway.authorization.cached_decision import CachedDecision
from ostiary_gateway.proxy.active_requests import ActiveRequests, OpenExchange
from ostiary_gateway.proxy.authorizer import RequestAuthorizer
from ostiary_gateway.proxy.context import RequestPlan

log = logging.getLogger("ostiary.gateway")

# Not every provider can tell that its policy has changed. So what is open is looked at this often at least, and more
# often if decisions live shorter; a provider is asked again when its decision has lived.
LONGEST_SECONDS = 10.0
SHORTEST_SECONDS = 1.0
# How many plans are judged before others get their turn, and how many questions wait for an answer at once.
PER_TURN = 50
AT_ONCE = 64

Start = Callable[[Coroutine[object, object, None]], None]


class Rejudge:
    """For the open exchanges of one engine. *start* runs a coroutine beside everything else."""

    def __init__(
        self, exchanges: ActiveRequests, judge: RequestAuthorizer, clock: Clock, *, unconfirmed: float, start: Start
    ) -> None:
        self._exchanges = exchanges
        self._judge = judge
        self._monotonic = clock.monotonic
        self._unconfirmed = unconfirmed
        self._start = start
        self._generation = judge.generation
        self._due = self._monotonic() + self._interval
        self._is_running = self._must_run_again = False
        # Since when nobody could say whether these are still allowed.
        self._unconfirmed_since: dict[OpenExchange, float] = {}

    def tick(self) -> None:
        """About once a second."""
        generation = self._judge.generation
        if generation != self._generation or self._monotonic() >= self._due:
            self._generation = generation
            self._begin()

    def judge_all_anew(self) -> None:
        """Another configuration has taken over: what is still open goes on only if that one allows it, too."""
        self._generation = self._judge.generation
        for proxied in self._exchanges:
            ctx = proxied.context
            # Nothing that the old policy ruled counts any more.
            ctx.plan.ruling = replace(ctx.plan.ruling, until=float("-inf"))
        self._begin()

    @property
    def _interval(self) -> float:
        return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, self._judge.cache_seconds))

    def _begin(self) -> None:
        self._due = self._monotonic() + self._interval
        if not self._exchanges:
            return
        self._must_run_again = True
        if not self._is_running:
            self._is_running = True
            self._start(self._run())

    async def _run(self) -> None:
        try:
            while self._must_run_again:
                self._must_run_again = False
                await self._judge_all()
        finally:
            self._is_running = False

    async def _judge_all(self) -> None:
        for ended in [each for each in self._unconfirmed_since if each not in self._exchanges]:
            del self._unconfirmed_since[ended]
        undecided: list[tuple[RequestPlan, list[OpenExchange]]] = []
        for number, (plan, exchanges) in enumerate(self._by_plan()):
            if number % PER_TURN == PER_TURN - 1:
                await asyncio.sleep(0)
            if self._holds(plan.ruling):
                continue
            required = self._judge.required_now(plan, exchanges[0].context)
            if required is None:
                self._cut(exchanges, "the configuration no longer has it")
                continue
            plan.required = required
            ruling = None if plan.impersonation else self._judge.decide(plan.user, required, plan.delegation)
            if ruling is None:
                undecided.append((plan, exchanges))
            else:
                self._apply(plan, exchanges, ruling)
        groups = iter(undecided)
        while group := list(islice(groups, AT_ONCE)):
            await asyncio.gather(*(self._wait_for_ruling(plan, exchanges) for plan, exchanges in group))

    def _by_plan(self) -> list[tuple[RequestPlan, list[OpenExchange]]]:
        """What is open, by the plan that it was begun with: equal requests of a user are judged once."""
        groups: dict[int, tuple[RequestPlan, list[OpenExchange]]] = {}
        for proxied in self._exchanges:
            ctx = proxied.context
            groups.setdefault(id(ctx.plan), (ctx.plan, []))[1].append(proxied)
        return list(groups.values())

    def _holds(self, ruling: CachedDecision) -> bool:
        return ruling.generation == self._generation and self._monotonic() < ruling.until

    async def _wait_for_ruling(self, plan: RequestPlan, exchanges: list[OpenExchange]) -> None:
        try:
            ruling = await self._judge.authorize_plan(plan, plan.required)
        except ProviderError as error:
            self._note_unconfirmed(exchanges, error)
        else:
            self._apply(plan, exchanges, ruling)

    def _apply(self, plan: RequestPlan, exchanges: list[OpenExchange], ruling: CachedDecision) -> None:
        if not ruling.allowed:
            self._cut(exchanges, "the policy no longer allows it")
            return
        if ruling == plan.ruling:
            plan.ruling, confirmed = ruling, plan
        else:
            # A plan of their own: what is prepared for the audit events of the old one quotes its reason.
            confirmed = replace(plan, ruling=ruling)
        for proxied in exchanges:
            proxied.context.plan = confirmed
            self._unconfirmed_since.pop(proxied, None)

    def _note_unconfirmed(self, exchanges: list[OpenExchange], error: ProviderError) -> None:
        """Nobody could be asked, which is no refusal: the exchanges go on for a while, and are asked about again."""
        now = self._monotonic()
        self._due = min(self._due, now + SHORTEST_SECONDS)
        since = self._unconfirmed_since
        overdue = [each for each in exchanges if now - since.setdefault(each, now) >= self._unconfirmed]
        if overdue:
            self._cut(
                overdue, f"it could not be confirmed in time that it is still allowed: {error.cause or error.summary}"
            )

    def _cut(self, exchanges: list[OpenExchange], why: str) -> None:
        for proxied in exchanges:
            self._unconfirmed_since.pop(proxied, None)
            if proxied in self._exchanges:
                log.info("a stream was cut: %s", why, extra={"request_id": proxied.context.audit_id})
                proxied.cut()
