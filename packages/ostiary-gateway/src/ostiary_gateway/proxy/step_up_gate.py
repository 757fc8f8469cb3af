"""The step between the decision and the seat for requests that fall under a step-up rule.

    met                                     goes on as any other
    not met, and the store knows more       the person has just proved it at another worker: goes on
    not met, a program's token              403: nobody is there who could prove anything
    not met, a browser at an application    a page load is led to the sign-in, everything else gets a 401
    not met, a person at a command line     held while a program on their machine asks them (`cli.signin.step_up`);
                                            401 if none does, if they refuse, or after ``stepUp.hold``

Called by the engine; only plans with rules come here. A held request has no seat. It waits in a place of its own, of
which a user has only so many, and leaves it as soon as its client does. How often a user's requests ask the store is
bounded, too. Doors of other proxies hold nothing: a proxy waits for an answer for seconds only.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError, TooManyRequests
from ostiary_gateway.audit.source_ips import Network, source_ips
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.cookies import browser_request
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.authorization.step_up import StepUpRule, StepUpRules, describe_request
from ostiary_gateway.config.step_up import StepUpSettings
from ostiary_gateway.interfaces.token_store import SessionKind
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.browsers import BrowserPages
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.responses import Responses
from ostiary_gateway.proxy.target import split_target

# What the engine needs of the sign-in for step-ups: it says what a session must prove, and hears what came of it.
#
# `gateway.login.step_up` implements it, in the token store: the person may prove themselves at another worker or
# replica.


@dataclass(frozen=True, slots=True)
class Demand:
    """What a session must prove before a request of it goes on.

    `rule` demands it. `request` is what was asked, from `address`: the person reads both before they prove anything.
    `id` tells this demand from earlier ones of the same session.
    """

    id: str
    session_id: str
    rule: str
    request: str
    address: str


class DemandState(Enum):
    NOT_SEEN = "not seen"  # nobody has asked for it yet
    SEEN = "seen"  # a program on the person's machine has it, and asks them
    REFUSED = "refused"  # they did not, or could not, prove it


class StepUpDemands(Protocol):
    """Raises `ProviderError` if the store cannot be asked."""

    def can_step_up(self, provider: str) -> bool:
        """Whether the identity provider with this name can ask a person for more."""

    async def put(self, demand: Demand) -> None:
        """Tell whoever asks for the session. An earlier demand of the session makes room for it."""

    async def state(self, demand: Demand) -> DemandState: ...


# How many requests wait for step-ups at a time: of one user, and in all. One instance per worker.


class HeldPlaces:
    def __init__(self, *, per_user: int, in_all: int) -> None:
        self._per_user, self._in_all = per_user, in_all
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._held.total()

    def take(self, username: str) -> bool:
        """A place for one more request; False if there is none. `leave` gives it back."""
        if self._held[username] >= self._per_user or len(self) >= self._in_all:
            return False
        self._held[username] += 1
        return True

    def leave(self, username: str) -> None:
        self._held[username] -= 1
        if not self._held[username]:
            del self._held[username]


# How often a held request asks the store whether the person has proved themselves, in seconds.
INTERVAL = 0.5
# A program on the person's machine asks for the demand within this time, or there is none.
SEEN_WITHIN = 6.0
# How often the requests of one user may have the store asked, at this worker. No other limit holds for them yet.
LOOKS_PER_SECOND, LOOKS_AT_ONCE = 10.0, 100.0

Ask = Callable[[RequestContext, CachedToken], None]
Pause = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class StepUpParts:
    """The rules of one configuration, and what holds requests meanwhile. `hold` is in seconds."""

    rules: StepUpRules
    demands: StepUpDemands
    places: HeldPlaces
    hold: float
    pause: Pause = asyncio.sleep


def open_step_up(
    settings: StepUpSettings, rules: StepUpRules, demands: StepUpDemands, metrics: Metrics
) -> StepUpParts | None:
    """The parts of a configuration; None if it has no rules."""
    if not rules:
        return None
    places = HeldPlaces(per_user=settings.held_per_user, in_all=settings.held_in_all)
    metrics.held.read_from(lambda: len(places))
    return StepUpParts(rules, demands, places, settings.hold.total_seconds())


class StepUpGate:
    """For the requests of one engine. *ask* goes on with a request whose token has changed."""

    def __init__(
        self,
        parts: StepUpParts,
        *,
        authenticator: TokenAuthenticator,
        answers: Responses,
        pages: BrowserPages | None,
        metrics: Metrics,
        clock: Clock,
        ask: Ask,
        holds: bool,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        self._trusted = trusted_proxies
        self._parts = parts
        self._authenticator = authenticator
        self._answers = answers
        self._pages = pages
        self._metrics = metrics
        self._now, self._monotonic = clock.now, clock.monotonic
        self._ask = ask
        self._seconds = parts.hold if holds else 0.0
        self._looks = Buckets(LOOKS_PER_SECOND, LOOKS_AT_ONCE, clock=clock, name="step-ups")

    def unmet_rule(self, ctx: RequestContext) -> StepUpRule | None:
        """The rule that keeps the request from going on; None if it may."""
        applied, token, now = ctx.plan.step_up, ctx.token, self._now()
        if applied is None or (applied.is_met(now) and _is_of_person(token)):
            return None
        # What a program holds proves nothing about a person, whatever its session says.
        return applied.first_unmet(now) or applied.rules[0]

    async def handle_unmet(self, ctx: RequestContext, rule: StepUpRule) -> None:
        token = ctx.token
        if not _is_of_person(token):
            self._refuse(ctx, rule, "programs cannot prove that a person is there")
        elif not self._parts.demands.can_step_up(token.session.provider):
            self._refuse(ctx, rule, "your identity provider cannot ask you for it")
        elif self._looks.take(token.user.username):
            self._require(ctx, rule)
        elif (current := await self._look_up(ctx)) is None:
            return
        elif current.user != token.user:
            # The session has changed since this worker looked: perhaps this is what is required.
            self._ask(ctx, current)
        elif token.is_application:
            await self._lead_to_sign_in(ctx, rule)
        else:
            await self._hold(ctx, rule)

    # --- the token as the store has it now ---

    async def _look_up(self, ctx: RequestContext) -> CachedToken | None:
        """None if the request was answered."""
        try:
            current = await self._authenticator.find_again(ctx.token)
        except ProviderError as error:
            self._answers.send_store_unavailable(ctx, error, ctx.plan.upstream)
            return None
        if current is None or current.revoked:
            self._answers.send_unauthorized(ctx, attempted=True)
            return None
        return current

    # --- a person at a command line ---

    async def _hold(self, ctx: RequestContext, rule: StepUpRule) -> None:
        token, places = ctx.token, self._parts.places
        demand = Demand(
            secrets.token_urlsafe(16),
            token.session.id,
            rule.name,
            describe_request(ctx.plan.info),
            self._address(ctx),
        )
        username = token.user.username
        has_place = self._seconds > 0 and places.take(username)
        try:
            # Also where nothing is held: the credential plugin that runs after the 401 asks for it.
            await self._parts.demands.put(demand)
            goes_on = await self._wait(ctx, demand) if has_place else None
        except ProviderError as error:
            self._answers.send_store_unavailable(ctx, error)
            return
        finally:
            if has_place:
                places.leave(username)
        if goes_on is not None:
            self._count(rule, "met")
            self._ask(ctx, goes_on)
        elif not ctx.exchange.gone and not ctx.exchange.ended:
            self._require(ctx, rule)

    def _address(self, ctx: RequestContext) -> str:
        """Where the request comes from, as far as trusted proxies vouch for it: the person reads it."""
        forwarded = [line.decode("latin-1") for line in ctx.scanned.forwarded_for]
        remote = ctx.exchange.connection.remote_address
        return source_ips(remote, forwarded_for=forwarded, trusted=self._trusted)[0]

    async def _wait(self, ctx: RequestContext, demand: Demand) -> CachedToken | None:
        """The token when its session has changed; None if the request is not to go on, or was answered."""
        self._count_held(demand)
        listener = _ClientListener()
        ctx.exchange.responder = listener
        began = self._monotonic()
        try:
            while True:
                await self._pause(listener)
                if ctx.exchange.gone:
                    return None
                if ctx.exchange.connection.draining:
                    # This worker ends. client-go sends the request again, to another one.
                    error = TooManyRequests("the gateway is restarting", retry_after=1.0)
                    self._answers.send_too_many(ctx, error, "step-up", ctx.plan)
                    return None
                current = await self._look_up(ctx)
                if current is None or current.user != ctx.token.user:
                    return current
                waited = self._monotonic() - began
                state = await self._parts.demands.state(demand)
                if state is DemandState.REFUSED or waited >= self._seconds:
                    return None
                if state is DemandState.NOT_SEEN and waited >= SEEN_WITHIN:
                    return None
        finally:
            if ctx.exchange.responder is listener:
                ctx.exchange.responder = None

    async def _pause(self, listener: _ClientListener) -> None:
        """Until it is time to look again, or the client is gone."""
        pause, gone = asyncio.ensure_future(self._parts.pause(INTERVAL)), asyncio.ensure_future(listener.lost.wait())
        try:
            await asyncio.wait((pause, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            gone.cancel()

    # --- a browser at a web application ---

    async def _lead_to_sign_in(self, ctx: RequestContext, rule: StepUpRule) -> None:
        request, upstream = ctx.exchange.request, ctx.plan.upstream
        browser = browser_request(request.method, request.headers, upgrade=request.upgrade)
        if self._pages is None or upstream is None or not browser.is_navigation:
            self._require(ctx, rule)
            return
        path, query = split_target(request.target, host=request.host, any_name=True)
        target = f"{path}?{query}" if query else path
        page = await self._pages.begin_sign_in(ctx, upstream, target=target, required=rule.required)
        self._count(rule, "required")
        self._answers.send_page(
            ctx, page.code, page.headers, page.body, plan=ctx.plan, reason=f"step-up by the rule {rule.name}"
        )

    # --- answers ---

    def _require(self, ctx: RequestContext, rule: StepUpRule) -> None:
        self._count(rule, "required")
        self._answers.send_step_up_required(ctx, rule)

    def _refuse(self, ctx: RequestContext, rule: StepUpRule, why: str) -> None:
        self._count(rule, "impossible")
        self._answers.send_step_up_impossible(ctx, rule, why)

    def _count(self, rule: StepUpRule, result: str) -> None:
        self._metrics.step_ups.inc(rule.name, result)

    def _count_held(self, demand: Demand) -> None:
        self._metrics.step_ups.inc(demand.rule, "held")


def _is_of_person(token: CachedToken) -> bool:
    """A session that somebody signed in for, and the whole of it: a narrowed token is for a program."""
    return token.session.kind is SessionKind.SIGN_IN and not token.delegation


class _ClientListener:
    """Hears that the client of a held request is gone. The body waits at the exchange."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def body(self, data: bytes) -> None:
        """Not called: the body is not accepted yet."""

    def body_end(self) -> None:
        """Not called."""

    def client_lost(self) -> None:
        self.lost.set()

    def client_full(self) -> None:
        """Nothing is sent."""

    def client_ready(self) -> None:
        """Nothing is sent."""
