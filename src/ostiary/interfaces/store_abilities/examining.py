"""Token stores that can say how they are, and who else uses them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a store says of itself.

    `facts` are names and short texts for people: which server, which version of the schema. `problems` are mistakes in
    what is stored. `time` is the time of day where expiry is judged, if that is not this process.
    """

    facts: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    time: datetime | None = None


@runtime_checkable
class ExaminesStore(Protocol):
    """A token store for ``ostiary store check``, and for ``store migrate``, which must not run beside a gateway."""

    async def examine(self) -> StoreReport:
        """Look at everything that is stored; this may take a while. Changes nothing.

        Raises `ProviderError` if the store cannot be asked.
        """

    async def others_using(self) -> tuple[str, ...]:
        """Who else has it open now, a short text for each. Empty if nobody has, or if that cannot be told."""
