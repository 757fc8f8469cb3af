"""Tokens that are less than their owner: what such a token may be used for, and who uses it.

    --can "get,list pods -n shop"  ->  `parse_scope`  ->  `Scope`, a layer of  ->  `Delegation`  ->  the token's record

Used by whoever mints a token, and by the gateway, which checks every request against the delegation of its token before
the policy is asked.
"""

from __future__ import annotations

from ostiary.core.delegation.delegation import BEYOND_SCOPE, NOTHING, Delegation, decode, narrow
from ostiary.core.delegation.parsing import parse_scope, scope_of_rules
from ostiary.core.delegation.scope import Scope, ScopeRule

__all__ = [
    "BEYOND_SCOPE",
    "NOTHING",
    "Delegation",
    "Scope",
    "ScopeRule",
    "decode",
    "narrow",
    "parse_scope",
    "scope_of_rules",
]
