"""Judges again what is open: an exchange goes on only as long as its user may do what it was opened for.

    the policy changed, or some seconds have passed  ->  each plan that something open was begun with is ruled anew
        allowed: go on   |   not allowed: cut   |   could not ask: go on for `authorization.unconfirmed`, then cut

Kept by the engine, and started by its ticker. It runs beside the requests, a few plans per turn of the loop. After a
reload the new configuration judges what was opened under the old one, and reads the request as it would read it now.
Tokens and sessions are none of its business: `gateway.authenticate` cuts what was opened with them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import islice
from typing import Any

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary.gateway.authorize.chain import Authorizer, Ruling
from ostiary.gateway.request.open_exchanges import OpenExchanges
from ostiary.gateway.request.questions import NoRoute, Questions, rule, rule_at_once
from ostiary.gateway.request.stages import Passage, Plan, Question
from ostiary.gateway.upstream.proxied import Proxied
from ostiary.model import RequestInfo

log = logging.getLogger("ostiary.gateway")

# Not every provider can tell that its policy has changed. So what is open is looked at this often at least, and more
# often if decisions live shorter; a provider is asked again when its decision has lived.
LONGEST_SECONDS = 10.0
SHORTEST_SECONDS = 1.0
# How many plans are judged before others get their turn, and how many questions wait for an answer at once.
PER_TURN = 50
AT_ONCE = 64

Start = Callable[[Coroutine[Any, Any, None]], object]


class Rejudge:
    """For the open exchanges of one engine. *start* runs a coroutine beside everything else."""

    def __init__(
        self, exchanges: OpenExchanges, authorizer: Authorizer, clock: Clock, *, unconfirmed: float, start: Start
    ) -> None:
        self._exchanges = exchanges
        self._authorizer = authorizer
        self._monotonic = clock.monotonic
        self._unconfirmed = unconfirmed
        self._start = start
        self._questions: Questions | None = None
        self._generation = authorizer.generation
        self._due = self._monotonic() + self._every
        self._running = False
        self._again = False
        # Since when nobody could say whether these are still allowed.
        self._unconfirmed_since: dict[Proxied, float] = {}

    def tick(self) -> None:
        """About once a second."""
        generation = self._authorizer.generation
        if generation != self._generation or self._monotonic() >= self._due:
            self._generation = generation
            self.begin()

    def judge_by(self, authorizer: Authorizer, questions: Questions) -> None:
        """Another configuration has taken over: what is still open goes on only if that one allows it, too."""
        self._authorizer, self._questions = authorizer, questions
        self._generation = authorizer.generation
        for proxied in self._exchanges:
            passage: Passage = proxied.context
            # Nothing that the old policy ruled counts any more.
            passage.plan.ruling = replace(passage.plan.ruling, until=float("-inf"))
        self.begin()

    @property
    def _every(self) -> float:
        return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, self._authorizer.cache_seconds))

    async def ruling_now(self, passage: Passage) -> Ruling | None:
        """The ruling on a request that had to wait since it was decided on; None if it has no place any more.

        Raises `ProviderError` if nobody can say.
        """
        plan = passage.plan
        # Numbers of another configuration's policy say nothing about this one's.
        if self._questions is None and self._authorizer.still_holds(plan.ruling):
            return plan.ruling
        required = self._required(plan, passage)
        return None if required is None else await self._rule(replace(plan, required=required))

    def begin(self) -> None:
        self._due = self._monotonic() + self._every
        if not self._exchanges:
            return
        self._again = True
        if not self._running:
            self._running = True
            self._start(self._run())

    async def _run(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._judge_all()
        finally:
            self._running = False

    async def _judge_all(self) -> None:
        for ended in [each for each in self._unconfirmed_since if each not in self._exchanges]:
            del self._unconfirmed_since[ended]
        waiting: list[tuple[Plan, list[Proxied]]] = []
        for number, (plan, opened) in enumerate(self._by_plan()):
            if number % PER_TURN == PER_TURN - 1:
                await asyncio.sleep(0)
            if self._holds(plan.ruling):
                continue
            required = self._required(plan, opened[0].context)
            if required is None:
                self._cut(opened, "the configuration no longer has it")
                continue
            plan.required = required
            ruling = rule_at_once(self._authorizer, plan.user, required) if not plan.impersonation else None
            if ruling is None:
                waiting.append((plan, opened))
            else:
                self._apply(plan, opened, ruling)
        groups = iter(waiting)
        while some := list(islice(groups, AT_ONCE)):
            await asyncio.gather(*(self._ask(plan, opened) for plan, opened in some))

    def _by_plan(self) -> list[tuple[Plan, list[Proxied]]]:
        """What is open, by the plan that it was begun with: equal requests of a user are judged once."""
        groups: dict[int, tuple[Plan, list[Proxied]]] = {}
        for proxied in self._exchanges:
            passage: Passage = proxied.context
            groups.setdefault(id(passage.plan), (passage.plan, []))[1].append(proxied)
        return list(groups.values())

    def _holds(self, ruling: Ruling) -> bool:
        return ruling.generation == self._generation and self._monotonic() < ruling.until

    def _required(self, plan: Plan, passage: Passage) -> tuple[RequestInfo, ...] | None:
        """What must be allowed, as the configuration of now reads the request; None if it would not pass it on."""
        if self._questions is None:
            return plan.required
        try:
            question = self._questions.of(passage.exchange.request)
        except (NoRoute, ValueError):
            return None
        return question.required if _is_same_upstream(plan, question) else None

    async def _ask(self, plan: Plan, opened: list[Proxied]) -> None:
        try:
            ruling = await self._rule(plan)
        except ProviderError as error:
            self._note_unconfirmed(opened, error)
        else:
            self._apply(plan, opened, ruling)

    async def _rule(self, plan: Plan) -> Ruling:
        if plan.actor is not None:
            for info in plan.impersonation:
                ruling = await rule(self._authorizer, plan.actor, (info,))
                if not ruling.decision.allowed:
                    return ruling
        return await rule(self._authorizer, plan.user, plan.required)

    def _apply(self, plan: Plan, opened: list[Proxied], ruling: Ruling) -> None:
        if not ruling.decision.allowed:
            self._cut(opened, "the policy no longer allows it")
            return
        if ruling.decision == plan.ruling.decision:
            plan.ruling, confirmed = ruling, plan
        else:
            # Not for those who come: what is prepared for the plan's audit events tells the reason of before.
            confirmed = replace(plan, ruling=ruling)
        for proxied in opened:
            proxied.context.plan = confirmed
            self._unconfirmed_since.pop(proxied, None)

    def _note_unconfirmed(self, opened: list[Proxied], error: ProviderError) -> None:
        """Not a no: what was rightly opened goes on for a while, and is asked about again."""
        now = self._monotonic()
        self._due = min(self._due, now + SHORTEST_SECONDS)
        since = self._unconfirmed_since
        overdue = [each for each in opened if now - since.setdefault(each, now) >= self._unconfirmed]
        if overdue:
            self._cut(
                overdue, f"it could not be confirmed in time that it is still allowed: {error.cause or error.summary}"
            )

    def _cut(self, opened: list[Proxied], why: str) -> None:
        for proxied in opened:
            self._unconfirmed_since.pop(proxied, None)
            if proxied in self._exchanges:
                log.info("a stream was cut: %s", why, extra={"request_id": proxied.context.audit_id})
                proxied.cut()


def _is_same_upstream(plan: Plan, question: Question) -> bool:
    """Whether the request would still go where it went: the very server, whatever else is configured for it."""
    if plan.upstream is None or question.upstream is None:
        # What we answer ourselves has none.
        return plan.upstream is question.upstream and question.handler is not None
    old, new = plan.upstream.settings, question.upstream.settings
    return (old.server, old.socket) == (new.server, new.socket)
