"""Applies what the identity system said at a step-up to the session that asked for it.

Called when the program that began a step-up fetches its result. The session keeps its tokens, its groups and its end:
only what is known of the sign-in changes. So a request that waits goes on with the token that it came with, and every
worker sees the change when it next looks the token up, which it does before it refuses.
"""

from __future__ import annotations

from dataclasses import replace

from ostiary.core.clock import Clock
from ostiary.core.tokens import Tokens
from ostiary.core.users.authentication_context import context_of, with_context
from ostiary.errors import LoginRefused
from ostiary.gateway.login.sign_in.required import check_required
from ostiary.gateway.login.step_up.demands import StoredDemands
from ostiary.gateway.login.step_up.tickets import Ticket, Tickets
from ostiary.interfaces.token_store import Session
from ostiary.model import UserInfo

_EXPIRED = "this step-up has expired: start again"


class StepUps:
    def __init__(self, tokens: Tokens, tickets: Tickets, demands: StoredDemands, *, clock: Clock) -> None:
        self._tokens = tokens
        self._demands = demands
        self._clock = clock
        self.tickets = tickets

    async def check(self, secret: str, user: UserInfo, provider: str) -> Ticket:
        """The ticket, if *user* is whom it is for; raises `LoginRefused`."""
        ticket = await self.tickets.find(secret)
        if ticket is None:
            raise LoginRefused(_EXPIRED, cause="unknown or expired ticket")
        self._check(ticket, user, provider)
        return ticket

    async def apply(self, secret: str, user: UserInfo, provider: str) -> Session:
        """The session, as it is from now on. Raises `LoginRefused` if *user* is another one, or it has ended."""
        ticket = await self.tickets.take(secret)
        if ticket is None:
            raise LoginRefused(_EXPIRED, cause="unknown, expired or used ticket")
        self._check(ticket, user, provider)
        # Read again right before it is written: a renewal may have changed what is kept for it.
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
