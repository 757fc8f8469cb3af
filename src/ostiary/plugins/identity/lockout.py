"""Slows down the guessing of passwords: after some failures a name is refused for a while, from where they came.

Called by the identity providers that check passwords, before they check one. Counted are a name together with an
address, so that nobody can lock somebody else out from elsewhere, and the address alone, against trying one
password on many names. Attempts that are still being checked count too: a thousand at once are no way around.
"""

from __future__ import annotations

import ipaddress
import math
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.errors import LoginRefused

# How many more failures one address has than one name from that address: people share addresses.
PER_ADDRESS = 10
MAX_ENTRIES = 10_000
MAX_NAME = 256

_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LockoutSettings:
    """After `attempts` failures within `window`, nothing is checked for `duration`."""

    attempts: int = 5
    window: timedelta = timedelta(minutes=15)
    duration: timedelta = timedelta(minutes=15)


def lockout_settings(fields: Fields) -> LockoutSettings:
    """The settings of a configuration's ``lockout`` section."""
    default = LockoutSettings()
    attempts = fields.optional_integer("attempts")
    spans = {key: fields.optional_duration(key) for key in ("window", "duration")}
    if attempts is not None and attempts < 1:
        fields.problem("it must be 1 at least", "attempts")
    for key, span in spans.items():
        if span is not None and span <= timedelta(0):
            fields.problem("it must be longer than nothing", key)
    return LockoutSettings(
        attempts=default.attempts if attempts is None else attempts,
        window=spans["window"] or default.window,
        duration=spans["duration"] or default.duration,
    )


class Attempt:
    """One password that is being checked. Without a `settle` nothing is counted: nobody learned anything."""

    def __init__(self) -> None:
        self.right: bool | None = None

    def settle(self, *, right: bool) -> None:
        self.right = right


@dataclass(slots=True)
class _Tally:
    limit: int
    since: float
    failures: int = 0
    pending: int = 0
    locked_until: float = -math.inf


class Lockout:
    """Belongs to one event loop; it never waits."""

    def __init__(self, settings: LockoutSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._clock = clock
        self._tallies: OrderedDict[_Key, _Tally] = OrderedDict()

    @contextmanager
    def attempt(self, username: str, address: str) -> Iterator[Attempt]:
        """Raises `LoginRefused` with `retry_after` when there have been too many."""
        of_name, of_address = tallies = self._open(username, address)
        attempt = Attempt()
        for tally in tallies:
            tally.pending += 1
        try:
            yield attempt
        finally:
            for tally in tallies:
                tally.pending -= 1
            if attempt.right:
                # Not the failures of the address: who has an account could otherwise go on guessing others.
                of_name.failures = 0
            elif attempt.right is False:
                self._count(of_name)
                self._count(of_address)

    def __len__(self) -> int:
        return len(self._tallies)

    def _open(self, username: str, address: str) -> tuple[_Tally, _Tally]:
        network = _network(address)
        attempts = self._settings.attempts
        tallies = (
            self._tally((network, _canonical(username)), limit=attempts),
            self._tally((network,), limit=attempts * PER_ADDRESS),
        )
        for tally in tallies:
            self._check(tally)
        return tallies

    def _tally(self, key: _Key, *, limit: int) -> _Tally:
        now = self._clock.monotonic()
        tally = self._tallies.get(key)
        if tally is None or (tally.pending == 0 and self._is_over(tally, now)):
            tally = self._tallies[key] = _Tally(limit, since=now)
        self._tallies.move_to_end(key)
        while len(self._tallies) > MAX_ENTRIES:
            self._tallies.popitem(last=False)
        return tally

    def _is_over(self, tally: _Tally, now: float) -> bool:
        if tally.failures >= tally.limit:
            return now >= tally.locked_until
        return now >= tally.since + self._settings.window.total_seconds()

    def _check(self, tally: _Tally) -> None:
        wait = tally.locked_until - self._clock.monotonic()
        if wait > 0:
            raise _refused("too many failed attempts: try again later", math.ceil(wait))
        if tally.failures + tally.pending >= tally.limit:
            raise _refused("too many attempts at once: try again in a moment", 1)

    def _count(self, tally: _Tally) -> None:
        tally.failures += 1
        if tally.failures >= tally.limit:
            tally.locked_until = self._clock.monotonic() + self._settings.duration.total_seconds()


def _refused(summary: str, retry_after: float) -> LoginRefused:
    return LoginRefused(summary, cause="the limit of failed attempts is reached", retry_after=retry_after)


def _canonical(username: str) -> str:
    # Only for counting: a directory may take Alice and ALICE for the same user, and each must not have her own limit.
    return unicodedata.normalize("NFKC", username).strip().casefold()[:MAX_NAME]


def _network(address: str) -> str:
    """Who has one IPv6 address has its whole /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = getattr(ip, "ipv4_mapped", None)
    if mapped is not None or ip.version == 4:
        return str(mapped or ip)
    return str(ipaddress.ip_network((int(ip), 64), strict=False))
