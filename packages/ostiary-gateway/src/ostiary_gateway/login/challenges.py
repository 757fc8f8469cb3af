"""Step-ups: what a session must prove, how its person is asked, and what becomes of the session.

demands    what held requests wait for, in the token store
tickets    a step-up under way: for which session, and what it must prove
step_ups   applies what the identity system said to the session
calls      what programs on the person's machine ask
"""

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

# A step-up that is under way: for which session, by which rule, and what the person reads before they agree.
#
# Called by `calls`, which makes one for a program that holds the session's token, and by the sign-in routes, which the
# person's browser comes to with it. A ticket gives nobody anything: what is proved must be proved by the very user of
# the session, and the result goes to the program that began it.

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


# What held requests wait for, in the token store, so that any worker and replica can tell the person's machine.
#
# Called by the engine (`request.step_up.gate`) and by `login.step_up.calls`. There is one demand per session, the
# latest.

# Longer than a request is held: after its 401 the credential plugin asks what was demanded.


class StoredDemands:
    """Implements `ostiary_gateway.proxy.step_up_gate.StepUpDemands`."""

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
