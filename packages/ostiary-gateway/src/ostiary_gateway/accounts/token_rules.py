"""How long a token of an account, or an API token, may live. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ostiary.core.scopes import Delegation, parse_scope
from ostiary_gateway.accounts.errors import NotPossible
from ostiary_gateway.settings.kinds import short_duration

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


# The scope that a token is made with: what makes it less than its owner. Pure.


def delegation_for(scope: str) -> tuple[str, str]:
    """What is stored with a token of this scope, and the scope as it was understood; both empty if there is none.

    Raises `ScopeError`: a token must not be more than was asked for.
    """
    if not scope.strip():
        return "", ""
    parsed = parse_scope(scope)
    return Delegation((parsed,)).encode(), str(parsed)
