"""Slows down the guessing of passwords: after some failures a name is refused for a while, from where they came.

Called by the identity providers that check passwords, before they check one. It counts failures of a name together
with an address, so that nobody can lock somebody else out from elsewhere, and of the address alone, against trying one
password on many names. Attempts that are still being checked count too, so a thousand at once do not get around it.
All workers and replicas of a gateway count together, exactly: without the store that replicas count in, no password is
checked.
"""

from __future__ import annotations

import ipaddress
import math
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, TypeAlias, TypeVar

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import LoginRefused
from ostiary_gateway.interfaces.shared_counts import SharedCounts, State
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.settings.kinds import Duration, Integer

# How many more failures one address has than one name from that address: people share addresses.
PER_ADDRESS = 10
MAX_NAME = 256
# A password is checked sooner than this, or its worker has died.
PENDING_SECONDS = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LockoutSettings:
    """After `attempts` failures within `window`, nothing is checked for `duration`."""

    attempts: Annotated[
        int, Integer("failures of one name from one address; ten times as many for the address as a whole")
    ] = 5
    window: Annotated[timedelta, Duration("failures count for this long")] = timedelta(minutes=15)
    duration: Annotated[timedelta, Duration("how long nothing is checked then")] = timedelta(minutes=15)


class Attempt:
    """One password that is being checked. Without a `settle` nothing is counted: nobody learned anything."""

    def __init__(self) -> None:
        self.right: bool | None = None

    def settle(self, *, right: bool) -> None:
        self.right = right


class Lockout:
    """Counts in *counts*, under the *name* of the provider whose passwords are guessed."""

    def __init__(
        self,
        settings: LockoutSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        counts: SharedCounts | None = None,
        name: str = "",
    ) -> None:
        self._settings = settings
        self._counts = MemoryCounts(clock=clock) if counts is None else counts
        self._prefix = f"lockout/{name}/"

    @asynccontextmanager
    async def attempt(self, username: str, address: str) -> AsyncIterator[Attempt]:
        """Raises `LoginRefused` with `retry_after` when there have been too many."""
        of_name, of_address = tallies = self._tallies(username, address)
        await self._open(of_name)
        try:
            await self._open(of_address)
        except BaseException:
            await self._update(of_name, _close(None))
            raise
        attempt = Attempt()
        try:
            yield attempt
        finally:
            # A success does not clear the failures of the address: somebody with an account could keep guessing others.
            outcomes = (attempt.right, None if attempt.right else attempt.right)
            for tally, right in zip(tallies, outcomes, strict=True):
                await self._update(tally, _close(right))

    def _tallies(self, username: str, address: str) -> tuple[_Tally, _Tally]:
        network, settings = _network(address), self._settings
        attempts, window, duration = settings.attempts, settings.window, settings.duration
        # The length makes it impossible for a name to look like another network.
        name = f"{self._prefix}{len(network)}/{network}"
        seconds = (window.total_seconds(), duration.total_seconds())
        return (
            _Tally(f"{name}/{_canonical(username)}", attempts, *seconds),
            _Tally(name, attempts * PER_ADDRESS, *seconds),
        )

    async def _open(self, tally: _Tally) -> None:
        wait, locked = await self._update(tally, _open)
        if locked:
            raise _refusal("too many failed attempts: try again later", math.ceil(wait))
        if wait:
            raise _refusal("too many attempts at once: try again in a moment", 1)

    async def _update(self, tally: _Tally, change: _Step[T]) -> T:
        def apply(state: State, now: float) -> tuple[State, float, T]:
            numbers = _Numbers(*state) if state else _Numbers(since=now)
            result = change(tally, numbers, now)
            return numbers.state(), numbers.seconds_left(tally, now), result

        return await self._counts.update(tally.key, apply)


@dataclass(frozen=True, slots=True)
class _Tally:
    """What is counted under one key, and how much is too much."""

    key: str
    limit: int
    window: float
    duration: float


@dataclass(slots=True)
class _Numbers:
    """As they are shared. `pending_at` is when the latest attempt began: one whose worker died is not waited for."""

    failures: float = 0.0
    pending: float = 0.0
    since: float = 0.0
    locked_until: float = -math.inf
    pending_at: float = -math.inf

    def state(self) -> State:
        return self.failures, self.pending, self.since, self.locked_until, self.pending_at

    def seconds_left(self, tally: _Tally, now: float) -> float:
        if self.pending:
            return max(tally.window, PENDING_SECONDS)
        if self.failures >= tally.limit:
            return self.locked_until - now
        return self.since + tally.window - now if self.failures else 0.0


_Step: TypeAlias = Callable[[_Tally, _Numbers, float], T]


def _open(tally: _Tally, numbers: _Numbers, now: float) -> tuple[float, bool]:
    """One more attempt; or how many seconds to wait, and whether that is because of failures."""
    if now - numbers.pending_at > PENDING_SECONDS:
        numbers.pending = 0.0
    if numbers.pending == 0 and _is_over(tally, numbers, now):
        numbers.failures, numbers.since, numbers.locked_until = 0.0, now, -math.inf
    if numbers.locked_until > now:
        return numbers.locked_until - now, True
    if numbers.failures + numbers.pending >= tally.limit:
        return 1.0, False
    numbers.pending += 1
    numbers.pending_at = now
    return 0.0, False


def _is_over(tally: _Tally, numbers: _Numbers, now: float) -> bool:
    if numbers.failures >= tally.limit:
        return now >= numbers.locked_until
    return now >= numbers.since + tally.window


def _close(right: bool | None) -> _Step[None]:
    """The attempt is over; *right* is None if nothing follows from it."""

    def close(tally: _Tally, numbers: _Numbers, now: float) -> None:
        numbers.pending = max(0.0, numbers.pending - 1)
        if right:
            numbers.failures = 0.0
        elif right is False:
            numbers.failures += 1
            if numbers.failures >= tally.limit:
                numbers.locked_until = now + tally.duration

    return close


def _refusal(summary: str, retry_after: float) -> LoginRefused:
    return LoginRefused(summary, cause="the limit of failed attempts is reached", retry_after=retry_after)


def _canonical(username: str) -> str:
    # Only for counting: a directory may take Alice and ALICE for the same user, and each must not have her own limit.
    return unicodedata.normalize("NFKC", username).strip().casefold()[:MAX_NAME]


def _network(address: str) -> str:
    """The network of an address: a host with one IPv6 address usually has its whole /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = getattr(ip, "ipv4_mapped", None)
    if mapped is not None or ip.version == 4:
        return str(mapped or ip)
    return str(ipaddress.ip_network((int(ip), 64), strict=False))
