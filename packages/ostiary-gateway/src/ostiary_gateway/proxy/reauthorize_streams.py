"""Authorize in-flight requests again, and close those whose user lost the permission.

    policy changed, or the interval has passed  ->  decide again for each plan of an in-flight request
        allowed: continue   |   denied: close   |   provider error: continue for `authorization.unconfirmed`, then close

Runs beside the requests, a few plans per iteration of the event loop. After a reload the new configuration decides, and
resolves the requests again. Revoked tokens and ended sessions are handled by `authentication`.
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

# Not every provider can report a policy change, so requests are authorized again at this interval at most, or sooner if
# decisions expire sooner. A provider is queried again when its decision has expired.
LONGEST_SECONDS = 10.0
SHORTEST_SECONDS = 1.0
# Plans decided before other tasks run, and concurrent queries of providers.
PER_TURN = 50
AT_ONCE = 64

Start = Callable[[Coroutine[object, object, None]], None]


class Rejudge:
    """Authorizes the in-flight requests of one engine again. *start* runs a coroutine in a task."""

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
        # Since when the authorization of these requests could not be confirmed.
        self._unconfirmed_since: dict[OpenExchange, float] = {}

    def tick(self) -> None:
        """Run about once per second."""
        generation = self._judge.generation
        if generation != self._generation or self._monotonic() >= self._due:
            self._generation = generation
            self._begin()

    def judge_all_anew(self) -> None:
        """Authorize all requests again: another configuration has taken over."""
        self._generation = self._judge.generation
        for proxied in self._exchanges:
            ctx = proxied.context
            # Expire the decision: it was made by the old policy.
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
        """Group the requests by plan: identical requests of a user are decided once."""
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
            # A new plan: the audit events prepared in the old one quote its reason.
            confirmed = replace(plan, ruling=ruling)
        for proxied in exchanges:
            proxied.context.plan = confirmed
            self._unconfirmed_since.pop(proxied, None)

    def _note_unconfirmed(self, exchanges: list[OpenExchange], error: ProviderError) -> None:
        """Let requests continue for a while and query again: a provider error is not a denial."""
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
