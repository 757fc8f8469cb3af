"""Lock out password guessing: after some failures a username is blocked for a while, from the client's network.

Identity providers that check passwords use it before each check. All workers and replicas of a gateway share exact
counts: if the shared store is unavailable, no password is checked.
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

# The limit of failures per address, as a multiple of the limit per username and address: users share addresses.
PER_ADDRESS = 10
MAX_NAME = 256
# A password check takes less than this; if not, its worker has died.
PENDING_SECONDS = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LockoutSettings:
    """After `attempts` failures within `window`, no password is checked for `duration`."""

    attempts: Annotated[
        int, Integer("failures of one name from one address; ten times as many for the address as a whole")
    ] = 5
    window: Annotated[timedelta, Duration("failures count for this long")] = timedelta(minutes=15)
    duration: Annotated[timedelta, Duration("how long nothing is checked then")] = timedelta(minutes=15)


class Attempt:
    """One password check in progress. Without a call of `settle`, nothing is counted."""

    def __init__(self) -> None:
        self.right: bool | None = None

    def settle(self, *, right: bool) -> None:
        self.right = right


class Lockout:
    """Counts failures in *counts*; *name* is the identity provider that checks the passwords.

    Failures are counted per username and address, so that a user cannot be locked out from elsewhere, and per address,
    against trying one password for many usernames. Checks in progress count too, so that a thousand concurrent attempts
    do not bypass the limit.
    """

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
        """Count one attempt. Raise `LoginRefused` with `retry_after` if there were too many."""
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
            # A success does not reset the address: an attacker with an account could otherwise keep guessing others.
            outcomes = (attempt.right, None if attempt.right else attempt.right)
            for tally, right in zip(tallies, outcomes, strict=True):
                await self._update(tally, _close(right))

    def _tallies(self, username: str, address: str) -> tuple[_Tally, _Tally]:
        network, settings = _network(address), self._settings
        attempts, window, duration = settings.attempts, settings.window, settings.duration
        # The length prefix prevents a username from imitating another network.
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
    """One counter: its key and its limits."""

    key: str
    limit: int
    window: float
    duration: float


@dataclass(slots=True)
class _Numbers:
    """The shared state. `pending_at` is the start of the latest attempt, so that those of a dead worker expire."""

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
    """Begin an attempt. Return the seconds to wait, and whether the wait is a lockout; zero if it may proceed."""
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
    """Return the step that ends an attempt. *right* is None if the attempt does not count."""

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
    # For counting only: a directory may treat Alice and ALICE as one user, who must not get one limit per spelling.
    return unicodedata.normalize("NFKC", username).strip().casefold()[:MAX_NAME]


def _network(address: str) -> str:
    """Return the network of an address. A host with one IPv6 address usually controls its whole /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = getattr(ip, "ipv4_mapped", None)
    if mapped is not None or ip.version == 4:
        return str(mapped or ip)
    return str(ipaddress.ip_network((int(ip), 64), strict=False))
