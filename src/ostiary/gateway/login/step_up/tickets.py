"""A step-up that is under way: for which session, by which rule, and what the person reads before they agree.

Called by `calls`, which makes one for a program that holds the session's token, and by the sign-in routes, which the
person's browser comes to with it. A ticket gives nobody anything: what is proved must be proved by the very user of the
session, and the result goes to the program that began it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta

from ostiary.core.clock import Clock
from ostiary.gateway.login.records import Records
from ostiary.gateway.login.sign_in.required import required_from_json, required_json
from ostiary.interfaces.identity import RequiredAuthentication
from ostiary.interfaces.token_store import RecordStore, Session

LIFETIME = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Ticket:
    """`request`, from `address`, waits for it; both are empty if the person asked for the step-up beforehand."""

    session_id: str
    username: str
    provider: str
    rule: str
    required: RequiredAuthentication
    request: str = ""
    address: str = ""
    demand_id: str = ""


class Tickets:
    def __init__(self, store: RecordStore, *, clock: Clock) -> None:
        self._records = Records(store, "step-up ticket", LIFETIME, clock=clock)

    async def issue(
        self,
        session: Session,
        *,
        rule: str,
        required: RequiredAuthentication,
        request: str = "",
        address: str = "",
        demand_id: str = "",
    ) -> str:
        secret = secrets.token_urlsafe(32)
        value = {"session_id": session.id, "username": session.user.username, "provider": session.provider}
        about = {"rule": rule, "request": request, "address": address, "demand_id": demand_id}
        await self._records.put(secret, {**value, **about, "required": required_json(required)})
        return secret

    async def find(self, secret: str) -> Ticket | None:
        value = await self._records.find(secret)
        return None if value is None else Ticket(**{**value, "required": required_from_json(value["required"])})

    async def take(self, secret: str) -> Ticket | None:
        """The same, once."""
        value = await self._records.take(secret)
        return None if value is None else Ticket(**{**value, "required": required_from_json(value["required"])})
