"""What held requests wait for, in the token store, so that any worker and replica can tell the person's machine.

Called by the engine (`request.step_up.gate`) and by `login.step_up.calls`. There is one demand per session, the latest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta

from ostiary.core.abilities import has_trait
from ostiary.core.clock import Clock
from ostiary.gateway.config.settings import Identity
from ostiary.gateway.login.records import Records
from ostiary.gateway.request.step_up.demands import Demand, DemandState
from ostiary.interfaces.identity import StepsUp
from ostiary.interfaces.token_store import RecordStore

# Longer than a request is held: after its 401 the credential plugin asks what was demanded.
LIFETIME = timedelta(minutes=10)


class StoredDemands:
    """Implements `ostiary.gateway.request.step_up.demands.StepUpDemands`."""

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
