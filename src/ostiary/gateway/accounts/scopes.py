"""The scope that a token is made with: what makes it less than its owner. Pure."""

from __future__ import annotations

from ostiary.core.delegation import Delegation, parse_scope


def delegation_for(scope: str) -> tuple[str, str]:
    """What is stored with a token of this scope, and the scope as it was understood; both empty if there is none.

    Raises `ScopeError`: a token must not be more than was asked for.
    """
    if not scope.strip():
        return "", ""
    parsed = parse_scope(scope)
    return Delegation((parsed,)).encode(), str(parsed)
