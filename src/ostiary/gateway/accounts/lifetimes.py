"""How long a token of an account, or an API token, may live. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ostiary.core.settings.kinds import short_duration
from ostiary.gateway.accounts.refusals import NotPossible

SHORTEST = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """`usual` where none is asked for, and `longest` at most."""

    usual: timedelta
    longest: timedelta

    def resolve(self, lifetime: timedelta | None) -> timedelta:
        """What a token gets. Raises `NotPossible` for too long a one: it would end sooner than its holder thinks."""
        if lifetime is None:
            return min(self.usual, self.longest)
        if lifetime < SHORTEST:
            raise NotPossible("the lifetime must be at least a second")
        if lifetime > self.longest:
            raise NotPossible(f"the lifetime is longer than allowed here: {short_duration(self.longest)} at most")
        return lifetime
