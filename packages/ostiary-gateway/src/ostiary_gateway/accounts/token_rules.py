"""Lifetimes and scopes of service account tokens and API tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ostiary.core.scopes import Delegation, parse_scope
from ostiary_gateway.accounts.errors import NotPossible
from ostiary_gateway.settings.kinds import short_duration

SHORTEST = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Limits of a token's lifetime: `usual` is the default, `longest` the maximum."""

    usual: timedelta
    longest: timedelta

    def resolve(self, lifetime: timedelta | None) -> timedelta:
        """Return the lifetime of a new token.

        Raises `NotPossible` if *lifetime* is too long. Shortening it silently would end the token before its owner
        expects it.
        """
        if lifetime is None:
            return min(self.usual, self.longest)
        if lifetime < SHORTEST:
            raise NotPossible("the lifetime must be at least a second")
        if lifetime > self.longest:
            raise NotPossible(f"the lifetime is longer than allowed here: {short_duration(self.longest)} at most")
        return lifetime


def delegation_for(scope: str) -> tuple[str, str]:
    """Return the encoded delegation and the normalized scope; both empty without a scope.

    Raises `ScopeError` for an invalid scope: a token must never have more rights than requested.
    """
    if not scope.strip():
        return "", ""
    parsed = parse_scope(scope)
    return Delegation((parsed,)).encode(), str(parsed)
