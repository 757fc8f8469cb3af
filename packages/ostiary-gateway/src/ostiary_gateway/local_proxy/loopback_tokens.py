"""Tokens for the clients of one listener: in memory only, valid for minutes.

A client gets one at the control socket and presents it with each request. A token is valid at the listener of one
context and for one process: the next process rejects it.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from ostiary.core.clock import Clock
from ostiary.model import Secret

LIFETIME = timedelta(minutes=5)
# With less than this left, clients get a new token.
LEAST_LEFT = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class LoopbackToken:
    token: Secret
    expires_at: datetime
    ends_at: float


class LoopbackTokens:
    """The tokens of one listener: the current one and its predecessor."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens: list[LoopbackToken] = []

    def current(self) -> LoopbackToken:
        """Return a token with at least `LEAST_LEFT` to live."""
        now = self._clock.monotonic()
        if not self._tokens or self._tokens[-1].ends_at - now < LEAST_LEFT.total_seconds():
            token = Secret(secrets.token_urlsafe(32))
            expires_at, ends_at = self._clock.now() + LIFETIME, now + LIFETIME.total_seconds()
            self._tokens = [*self._tokens[-1:], LoopbackToken(token, expires_at, ends_at)]
        return self._tokens[-1]

    def accepts(self, presented: bytes) -> bool:
        """Report whether *presented* is valid, in constant time and by a clock that cannot be set back."""
        now = self._clock.monotonic()
        matches = [hmac.compare_digest(each.token.reveal().encode(), presented) for each in self._tokens]
        return any(match and now < each.ends_at for match, each in zip(matches, self._tokens, strict=True))
