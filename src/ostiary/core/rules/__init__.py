"""Rules as Kubernetes' RBAC has them: what one says, what it allows, and which other rules it covers.

Used wherever something is allowed by such rules: by the rbac provider, and by tokens that are less than their owner.
"""

from __future__ import annotations

from ostiary.core.rules.policy_rule import ANY, PolicyRule

__all__ = ["ANY", "PolicyRule"]
