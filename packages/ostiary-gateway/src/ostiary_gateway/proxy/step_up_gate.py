"""The step-up gate: runs after authorization for requests that fall under a step-up rule.

    met                                   continues
    unmet, but the session has changed    the user has just stepped up at another worker: continues
    unmet, machine identity or scoped     403: there is no user who could step up
    unmet, browser at an application      a page load is redirected to sign in, any other request gets a 401
    unmet, command line                   held while the CLI on the user's machine prompts them (`cli.login.step_up`);
                                          401 if it does not, if the user declines, or after ``stepUp.hold``

A held request has no concurrency permit. The number of held requests is limited per user, and a request stops waiting
when its client disconnects. The rate of store lookups per user is limited, too. Nothing is held for external
authorization: a proxy waits for a response for seconds only.
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


@dataclass(frozen=True, slots=True)
class Demand:
    """What a session must prove before a request of it continues.

    `rule` requires it. `request` and `address` describe the request: the user sees both before stepping up. `id`
    distinguishes the demand from earlier ones of the same session.
    """

    id: str
    session_id: str
    rule: str
    request: str
    address: str


class DemandState(Enum):
    NOT_SEEN = "not seen"  # no client has fetched it yet
    SEEN = "seen"  # the CLI on the user's machine has it and prompts the user
    REFUSED = "refused"  # the user declined or failed


class StepUpDemands(Protocol):
    """The demands in the token store: the user may step up at another worker or replica.

    Methods raise `ProviderError` if the store is unavailable.
    """

    def can_step_up(self, provider: str) -> bool:
        """Whether the identity provider with this name supports step-up."""

    async def put(self, demand: Demand) -> None:
        """Publish a demand, replacing an earlier one of the same session."""

    async def state(self, demand: Demand) -> DemandState: ...


class HeldPlaces:
    """Limit the number of held requests, per user and in total. One instance per worker."""

    def __init__(self, *, per_user: int, in_all: int) -> None:
        self._per_user, self._in_all = per_user, in_all
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._held.total()

    def take(self, username: str) -> bool:
        """Take a place for one more request. Return False if there is none. `leave` releases it."""
        if self._held[username] >= self._per_user or len(self) >= self._in_all:
            return False
        self._held[username] += 1
        return True

    def leave(self, username: str) -> None:
        self._held[username] -= 1
        if not self._held[username]:
            del self._held[username]


# Polling interval of a held request, in seconds.
INTERVAL = 0.5
# The CLI on the user's machine fetches a demand within this time, or is not running.
SEEN_WITHIN = 6.0
# Store lookups of one user's requests per second and in a burst, in this worker. No other limit applies to them yet.
LOOKS_PER_SECOND, LOOKS_AT_ONCE = 10.0, 100.0

Ask = Callable[[RequestContext, CachedToken], None]
Pause = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class StepUpParts:
    """The step-up rules of one configuration, and what holding requests needs. `hold` is in seconds."""

    rules: StepUpRules
    demands: StepUpDemands
    places: HeldPlaces
    hold: float
    pause: Pause = asyncio.sleep


def open_step_up(
    settings: StepUpSettings, rules: StepUpRules, demands: StepUpDemands, metrics: Metrics
) -> StepUpParts | None:
    """Return the step-up parts of a configuration; None if it has no rules."""
    if not rules:
        return None
    places = HeldPlaces(per_user=settings.held_per_user, in_all=settings.held_in_all)
    metrics.held.read_from(lambda: len(places))
    return StepUpParts(rules, demands, places, settings.hold.total_seconds())


class StepUpGate:
    """Check the step-up rules of one engine. *ask* continues with a request whose session has changed."""

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
        """Return the rule that blocks the request, or None."""
        applied, token, now = ctx.plan.step_up, ctx.token, self._now()
        if applied is None or (applied.is_met(now) and _is_of_person(token)):
            return None
        # A token of a machine proves nothing about a user, whatever its session says.
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
            # The session has changed since this worker cached it, perhaps by the required step-up.
            self._ask(ctx, current)
        elif token.is_application:
            await self._lead_to_sign_in(ctx, rule)
        else:
            await self._hold(ctx, rule)

    # --- current state of the session ---

    async def _look_up(self, ctx: RequestContext) -> CachedToken | None:
        """Return the current token; None if a response was sent."""
        try:
            current = await self._authenticator.find_again(ctx.token)
        except ProviderError as error:
            self._answers.send_store_unavailable(ctx, error, ctx.plan.upstream)
            return None
        if current is None or current.revoked:
            self._answers.send_unauthorized(ctx, attempted=True)
            return None
        return current

    # --- command line ---

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
            # Even if nothing is held: the credential plugin that runs after the 401 fetches the demand.
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
        """Return the client's address as far as trusted proxies confirm it. It is shown to the user."""
        forwarded = [line.decode("latin-1") for line in ctx.scanned.forwarded_for]
        remote = ctx.exchange.connection.remote_address
        return source_ips(remote, forwarded_for=forwarded, trusted=self._trusted)[0]

    async def _wait(self, ctx: RequestContext, demand: Demand) -> CachedToken | None:
        """Wait until the session has changed and return its token; None if the request must not continue."""
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
                    # The worker is stopping. client-go sends the request again, to another worker.
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
        """Wait until the next poll or until the client disconnects."""
        pause, gone = asyncio.ensure_future(self._parts.pause(INTERVAL)), asyncio.ensure_future(listener.lost.wait())
        try:
            await asyncio.wait((pause, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            gone.cancel()

    # --- browsers ---

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

    # --- responses ---

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
    """Whether the token is an unscoped one of an interactive sign-in. A scoped token is for a workload."""
    return token.session.kind is SessionKind.SIGN_IN and not token.delegation


class _ClientListener:
    """Notices that the client of a held request disconnects. The body stays buffered in the exchange."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def body(self, data: bytes) -> None:
        """Not called: the body is not accepted yet."""

    def body_end(self) -> None:
        """Not called."""

    def client_lost(self) -> None:
        self.lost.set()

    def client_full(self) -> None:
        """Not called: nothing is sent."""

    def client_ready(self) -> None:
        """Not called: nothing is sent."""
