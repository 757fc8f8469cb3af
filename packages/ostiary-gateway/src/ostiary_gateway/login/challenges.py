"""Step-up challenges in the token store: tickets of step-ups in progress, and demands of held requests."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta

from ostiary.core.clock import Clock
from ostiary_gateway.capabilities import has_trait
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import RequiredAuthentication, StepsUp
from ostiary_gateway.interfaces.token_store import RecordStore, Session
from ostiary_gateway.login.records import Records
from ostiary_gateway.login.required import required_from_json, required_json
from ostiary_gateway.proxy.step_up_gate import Demand, DemandState

# A ticket is a step-up in progress: its session and rule, and what the user reads before they agree. `login.step_up`
# issues it to a client with the session's token, and the user's browser brings it to the sign-in routes. A ticket
# grants nothing: the session's own user must authenticate, and the result goes to the client that started the step-up.

LIFETIME = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A step-up in progress for `request` from `address`. Both are empty if no request waits for it."""

    session_id: str
    username: str
    provider: str
    rule: str
    required: RequiredAuthentication
    request: str = ""
    address: str = ""
    demand_id: str = ""


class Tickets:
    """Tickets of step-ups in progress, in the token store. A ticket is identified by its secret."""

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
        """Like `find`, but consume the ticket."""
        value = await self._records.take(secret)
        return None if value is None else Ticket(**{**value, "required": required_from_json(value["required"])})


class StoredDemands:
    """Demands of held requests, in the token store (`ostiary_gateway.proxy.step_up_gate.StepUpDemands`).

    Any worker and replica can therefore report them to the user's machine. There is one demand per session, the latest.
    It outlives the held request: after the 401 the credential plugin queries what was demanded.
    """

    def __init__(self, store: RecordStore, identity: Mapping[str, Identity], *, clock: Clock) -> None:
        self._demands = Records(store, "step-up demand", LIFETIME, clock=clock)
        self._states = Records(store, "step-up state", LIFETIME, clock=clock)
        self._can = frozenset(name for name, each in identity.items() if has_trait(each.instance, StepsUp))

    def can_step_up(self, provider: str) -> bool:
        return provider in self._can

    async def put(self, demand: Demand) -> None:
        await self._demands.take(demand.session_id)
        await self._demands.put(demand.session_id, asdict(demand))

    async def find(self, session_id: str) -> Demand | None:
        value = await self._demands.find(session_id)
        return None if value is None else Demand(**value)

    async def remove(self, session_id: str) -> None:
        await self._demands.take(session_id)

    async def state(self, demand: Demand) -> DemandState:
        value = await self._states.find(demand.id)
        return DemandState.NOT_SEEN if value is None else DemandState(value["state"])

    async def set_state(self, demand_id: str, state: DemandState) -> None:
        await self._states.take(demand_id)
        await self._states.put(demand_id, {"state": state.value})
