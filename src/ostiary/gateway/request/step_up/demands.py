"""What the engine needs of the sign-in for step-ups: it says what a session must prove, and hears what came of it.

`gateway.login.step_up` implements it, in the token store: the person may prove themselves at another worker or replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


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
