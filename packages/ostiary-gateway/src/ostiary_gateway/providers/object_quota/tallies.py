"""The tallies of all subjects, in the counts that all workers and replicas share. Each change is one exact update.

Called by the provider and by the reconciliation. Nothing here survives a restart of the gateway or of the store: a
subject without a tally is listed before anything is decided about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.shared_counts import CountsFull, SharedCounts, State
from ostiary_gateway.providers.object_quota.subjects import QuotaSubject
from ostiary_gateway.providers.object_quota.tally import KEPT_SECONDS, Amounts, QuotaTally

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reserved:
    """The span that the request belongs to, for when it is settled, and what is counted with it."""

    span: int
    total: Amounts


@dataclass(frozen=True, slots=True)
class Full:
    """There is no room. `age` is how old the list is that says so; `outdated`, that there may be more room by now."""

    total: Amounts
    age: float
    outdated: bool


@dataclass(frozen=True, slots=True)
class Unlisted:
    """Nothing is known of the subject: it must be listed first."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A tally as it was at the time `at`; None if there is none. What began before a list is compared with it after."""

    tally: QuotaTally | None
    at: float


class Tallies:
    def __init__(self, counts: SharedCounts, name: str) -> None:
        self._counts = counts
        self._prefix = f"object_quota/{name}/"

    async def reserve(
        self, subject: QuotaSubject, wanted: Amounts, limits: tuple[int | None, ...]
    ) -> Reserved | Full | Unlisted:
        def change(tally: QuotaTally, now: float) -> Reserved | Full:
            if not tally.fits(wanted, limits):
                return Full(tally.total, now - tally.listed_at, tally.outdated)
            return Reserved(tally.open(wanted), tally.total)

        return await self._update(subject, change, Unlisted())

    async def add(
        self, subject: QuotaSubject, span: int, wanted: Amounts, limits: tuple[int | None, ...]
    ) -> Full | Reserved | Unlisted:
        """More for a request that is open already."""

        def change(tally: QuotaTally, now: float) -> Reserved | Full | Unlisted:
            if not tally.fits(wanted, limits):
                return Full(tally.total, now - tally.listed_at, tally.outdated)
            return Reserved(span, tally.total) if tally.add(span, wanted) else Unlisted()

        return await self._update(subject, change, Unlisted())

    async def close(self, subject: QuotaSubject, span: int, reserved: Amounts, *, stored: Amounts, less: bool) -> None:
        """A request is over. *stored* is what the upstream has more; *less*, that it has less of something."""

        def change(tally: QuotaTally, now: float) -> None:
            tally.close(span, reserved)
            tally.store(stored)
            if less:
                tally.expect_less()

        await self._update(subject, change, None)

    async def doubt(self, subject: QuotaSubject, span: int, reserved: Amounts) -> None:
        """Nobody knows whether the request was done."""

        def change(tally: QuotaTally, now: float) -> None:
            tally.close(span, reserved)
            tally.doubt(reserved, now)

        await self._update(subject, change, None)

    async def store(self, subject: QuotaSubject, stored: Amounts) -> None:
        """The upstream has more that nobody reserved."""
        await self._update(subject, lambda tally, now: tally.store(stored), None)

    async def expect_less(self, subject: QuotaSubject) -> None:
        await self._update(subject, lambda tally, now: tally.expect_less(), None)

    async def look(self, subject: QuotaSubject) -> Sight:
        def change(state: State, now: float) -> tuple[State, float, Sight]:
            tally = QuotaTally.read(state, now) if state else None
            return (() if tally is None else tally.state()), KEPT_SECONDS, Sight(tally, now)

        return await self._ask(subject, change)

    async def adopt(self, subject: QuotaSubject, before: Sight, listed: Amounts) -> Sight | None:
        """Take over what a list says that began after *before*; None if something has happened meanwhile.

        Returns the tally as it is then.
        """

        def change(state: State, now: float) -> tuple[State, float, Sight | None]:
            tally = QuotaTally.read(state, now) if state else None
            earlier = before.tally
            if tally is not None and (earlier is None or tally.changes != earlier.changes or not tally.is_quiet):
                return tally.state(), KEPT_SECONDS, None
            if tally is None:
                if earlier is not None:
                    return (), 0.0, None
                tally = QuotaTally.empty(len(listed), now)
            tally.adopt(listed, began_at=before.at)
            return tally.state(), KEPT_SECONDS, Sight(tally, now)

        return await self._ask(subject, change)

    async def _update(self, subject: QuotaSubject, change: Callable[[QuotaTally, float], T], absent: T) -> T:
        def apply(state: State, now: float) -> tuple[State, float, T]:
            if not state:
                return (), 0.0, absent
            tally = QuotaTally.read(state, now)
            result = change(tally, now)
            return tally.state(), KEPT_SECONDS, result

        return await self._ask(subject, apply)

    async def _ask(self, subject: QuotaSubject, change: Callable[[State, float], tuple[State, float, T]]) -> T:
        try:
            return await self._counts.update(self._prefix + subject.key, change, wide=True)
        except CountsFull:
            raise ProviderError("the quota cannot be counted", cause="too many subjects are counted already") from None
        except ProviderError:
            raise
        except Exception as error:
            raise ProviderError("the quota cannot be counted", cause=type(error).__name__) from error
