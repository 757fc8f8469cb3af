"""The tallies of all subjects, in the counts that all workers and replicas share. Each change is one atomic update.

Nothing here survives a restart of the gateway or of the store: a subject without a tally is listed before any decision.
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
    """A reservation: the span of the request, needed to settle it, and the total including it."""

    span: int
    total: Amounts


@dataclass(frozen=True, slots=True)
class Full:
    """The limit is reached. `age` is the age of the last list; `outdated` means that there may be room by now."""

    total: Amounts
    age: float
    outdated: bool


@dataclass(frozen=True, slots=True)
class Unlisted:
    """The subject has no tally: it must be listed first."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A tally at the time `at`; None if there is none. Taken before a list, and compared with the tally after it."""

    tally: QuotaTally | None
    at: float


class Tallies:
    """The shared tallies of all subjects."""

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
        """Reserve more for an open request."""

        def change(tally: QuotaTally, now: float) -> Reserved | Full | Unlisted:
            if not tally.fits(wanted, limits):
                return Full(tally.total, now - tally.listed_at, tally.outdated)
            return Reserved(span, tally.total) if tally.add(span, wanted) else Unlisted()

        return await self._update(subject, change, Unlisted())

    async def close(self, subject: QuotaSubject, span: int, reserved: Amounts, *, stored: Amounts, less: bool) -> None:
        """End a request. *stored* is how much the upstream has more; *less* means that it has less of something."""

        def change(tally: QuotaTally, now: float) -> None:
            tally.close(span, reserved)
            tally.store(stored)
            if less:
                tally.expect_less()

        await self._update(subject, change, None)

    async def doubt(self, subject: QuotaSubject, span: int, reserved: Amounts) -> None:
        """End a request of which it is unknown whether the upstream processed it."""

        def change(tally: QuotaTally, now: float) -> None:
            tally.close(span, reserved)
            tally.doubt(reserved, now)

        await self._update(subject, change, None)

    async def store(self, subject: QuotaSubject, stored: Amounts) -> None:
        """Count *stored*, for which nothing was reserved."""
        await self._update(subject, lambda tally, now: tally.store(stored), None)

    async def expect_less(self, subject: QuotaSubject) -> None:
        await self._update(subject, lambda tally, now: tally.expect_less(), None)

    async def look(self, subject: QuotaSubject) -> Sight:
        def change(state: State, now: float) -> tuple[State, float, Sight]:
            tally = QuotaTally.read(state, now) if state else None
            return (() if tally is None else tally.state()), KEPT_SECONDS, Sight(tally, now)

        return await self._ask(subject, change)

    async def adopt(self, subject: QuotaSubject, before: Sight, listed: Amounts) -> Sight | None:
        """Adopt a list that began after *before*. Return the new tally, or None if the tally changed meanwhile."""

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
