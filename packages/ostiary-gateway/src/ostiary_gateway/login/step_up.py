"""``POST /auth/step-up``: clients on the user's machine query the required step-up, and report if it was declined.

    wait=SECONDS               what a request of this session waits for; sent by `ostiary get-token` beside kubectl
    rule=NAME, or rule=*       for one rule, or the first that is not met; sent by `ostiary login --step-up`
    ticket=TICKET&refused=true the user declined the step-up: the waiting request is released

Only unscoped tokens of a user's sign-in session are accepted. Waiting clients are limited per user and in total, and so
are the tickets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.authorization.step_up import AppliedRules, StepUpRule, StepUpRules, describe
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.token_store import Session, SessionKind
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.challenges import LIFETIME, StoredDemands, Ticket, Tickets
from ostiary_gateway.login.events import LoginEvents
from ostiary_gateway.login.required import check_required
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.visit import bearer, field
from ostiary_gateway.proxy.step_up_gate import Demand, DemandState, HeldPlaces
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.sessions.authentication_context import context_of, with_context

LONGEST_WAIT = 20.0
# Interval in seconds between queries to the store while a client waits for a demand.
INTERVAL = 1.0
WAITING_PER_USER, WAITING_IN_ALL = 32, 4000
# Limit per user. Each ticket is a record, and the store keeps a limited number of records for all users.
TICKETS_PER_MINUTE = 60.0
ANY_RULE = "*"
_NOTHING = {"needed": False}

Pause = Callable[[float], Awaitable[object]]


class StepUpCalls:
    """The endpoint ``POST /auth/step-up``."""

    def __init__(
        self,
        tokens: Tokens,
        rules: StepUpRules,
        demands: StoredDemands,
        tickets: Tickets,
        events: LoginEvents,
        *,
        clock: Clock,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._tokens = tokens
        self._rules = rules
        self._demands = demands
        self._tickets = tickets
        self._events = events
        self._clock = clock
        self._pause = pause
        self._issued = Buckets(TICKETS_PER_MINUTE / 60, TICKETS_PER_MINUTE, clock=clock, name="step-up tickets")
        self._places = HeldPlaces(per_user=WAITING_PER_USER, in_all=WAITING_IN_ALL)

    async def answer(self, request: LoginRequest) -> LoginAnswer:
        if request.method != "POST":
            return answers.method_not_allowed(["POST"])
        token = bearer(request)
        if token is None:
            return answers.bearer_challenge()
        try:
            record = await self._tokens.find(token)
            if record is None:
                return answers.no_good_token()
            if record.session.kind is not SessionKind.SIGN_IN or record.token.delegation:
                return answers.error(403, "only the session of a person can be stepped up")
            if field(request, "refused") == "true":
                return await self._refuse(request, record.session)
            if name := field(request, "rule"):
                return await self._begin(record.session, name)
            return await self._wait(record.session, _seconds(field(request, "wait")))
        except Exception as error:
            return self._events.record_failure(error, request)

    async def _refuse(self, request: LoginRequest, session: Session) -> LoginAnswer:
        ticket = await self._tickets.take(field(request, "ticket") or "")
        if ticket is not None and ticket.session_id == session.id and ticket.demand_id:
            await self._demands.set_state(ticket.demand_id, DemandState.REFUSED)
            await self._demands.remove(session.id)
        return answers.no_content()

    async def _begin(self, session: Session, name: str) -> LoginAnswer:
        """Start a step-up that no request waits for."""
        rule = self._rules.first_unmet(session.user, self._clock.now()) if name == ANY_RULE else self._rules.find(name)
        if rule is None and name != ANY_RULE:
            # Not 404: a client treats that as a gateway without step-ups.
            return answers.error(400, "there is no step-up rule of this name")
        if rule is None or not self._is_unmet(rule, session):
            return answers.json_answer(200, _NOTHING)
        return await self._ticket_for(session, rule, None)

    async def _wait(self, session: Session, seconds: float) -> LoginAnswer:
        username = session.user.username
        if not self._places.take(username):
            return answers.too_many(LONGEST_WAIT)
        try:
            deadline = self._clock.monotonic() + seconds
            while True:
                demand = await self._demands.find(session.id)
                if demand is not None and (answer := await self._answer_demand(session, demand)) is not None:
                    return answer
                if self._clock.monotonic() >= deadline:
                    return answers.json_answer(200, _NOTHING)
                await self._pause(INTERVAL)
        finally:
            self._places.leave(username)

    async def _answer_demand(self, session: Session, demand: Demand) -> LoginAnswer | None:
        """Return the ticket for *demand*, or None if nothing has to be proved any more."""
        current, rule = await self._tokens.store.session(session.id), self._rules.find(demand.rule)
        if current is None:
            return answers.no_good_token()
        if rule is None or not self._is_unmet(rule, current):
            await self._demands.remove(session.id)
            return None
        await self._demands.set_state(demand.id, DemandState.SEEN)
        return await self._ticket_for(current, rule, demand)

    async def _ticket_for(self, session: Session, rule: StepUpRule, demand: Demand | None) -> LoginAnswer:
        if not self._demands.can_step_up(session.provider):
            return answers.error(403, "your identity provider cannot ask you for more")
        if wait := self._issued.take(session.user.username):
            return answers.too_many(wait)
        waiting = "" if demand is None else demand.request
        ticket = await self._tickets.issue(
            session,
            rule=rule.name,
            required=rule.required,
            request=waiting,
            address="" if demand is None else demand.address,
            demand_id="" if demand is None else demand.id,
        )
        return answers.json_answer(
            200,
            {
                "needed": True,
                "ticket": ticket,
                "rule": rule.name,
                "requires": describe(rule.required),
                "request": waiting,
                "expires_in": int(LIFETIME.total_seconds()),
            },
        )

    def _is_unmet(self, rule: StepUpRule, session: Session) -> bool:
        return not AppliedRules([rule], context_of(session.user)).is_met(self._clock.now())


def _seconds(text: str | None) -> float:
    return min(float(text), LONGEST_WAIT) if text is not None and text.isascii() and text.isdigit() else 0.0


# Apply the authentication context of a step-up to the session that requested it, when the client fetches the result.
# The session keeps its tokens, groups and expiry; only the context of the sign-in changes. A waiting request therefore
# continues with its token, and every worker sees the change at the next token lookup, which it does before it denies.

_EXPIRED = "this step-up has expired: start again"


class StepUps:
    """Check the tickets of step-ups, and apply a completed step-up to its session."""

    def __init__(self, tokens: Tokens, tickets: Tickets, demands: StoredDemands, *, clock: Clock) -> None:
        self._tokens = tokens
        self._demands = demands
        self._clock = clock
        self.tickets = tickets

    async def check(self, secret: str, user: UserInfo, provider: str) -> Ticket:
        """Return the ticket if it is for *user*. Raises `LoginRefused` otherwise."""
        ticket = await self.tickets.find(secret)
        if ticket is None:
            raise LoginRefused(_EXPIRED, cause="unknown or expired ticket")
        self._check(ticket, user, provider)
        return ticket

    async def apply(self, secret: str, user: UserInfo, provider: str) -> Session:
        """Return the updated session.

        Raises `LoginRefused` if the ticket is for another user or the session has ended.
        """
        ticket = await self.tickets.take(secret)
        if ticket is None:
            raise LoginRefused(_EXPIRED, cause="unknown, expired or used ticket")
        self._check(ticket, user, provider)
        # Read again right before writing: a session refresh may have changed the provider's stored state.
        session = await self._tokens.store.session(ticket.session_id)
        if session is None:
            raise LoginRefused(
                "this session has expired or was revoked: sign in again", cause="it ended during the step-up"
            )
        changed = replace(session, user=with_context(session.user, context_of(user)))
        await self._tokens.store.add(changed, [])
        await self._demands.remove(session.id)
        return changed

    def _check(self, ticket: Ticket, user: UserInfo, provider: str) -> None:
        if (user.username, provider) != (ticket.username, ticket.provider):
            raise LoginRefused(
                f"you signed in as {user.username}, and the command is run by {ticket.username}",
                cause="the step-up was answered by another user",
            )
        check_required(user, ticket.required, self._clock.now())
