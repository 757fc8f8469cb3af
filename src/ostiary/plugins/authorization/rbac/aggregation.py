"""ClusterRoles that are made of others: collects their rules, as a controller does in a cluster. Pure.

There the controller writes what it finds into the role, and is called again by that change, until nothing changes any
more. Files have no controller, so the same is computed here when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ostiary.wire.rbac import CLUSTER_ROLE, PolicyRule, Role


def aggregated(roles: Iterable[Role]) -> tuple[Role, ...]:
    """*roles*, each with the rules it has in the end.

    The rules of an aggregating role are those of the roles that its selectors find: selector by selector, the roles by
    name, itself left out, equal rules once. What the file lists as its own rules is overwritten, as in a cluster.
    """
    found = tuple(roles)
    cluster = {role.name: role for role in found if role.kind == CLUSTER_ROLE}
    parts = {name: _parts(role, cluster.values()) for name, role in cluster.items() if role.aggregates is not None}
    rules = {name: () if name in parts else role.rules for name, role in cluster.items()}
    changed = True
    # Rules are only ever added, so this ends even when two roles are made of each other.
    while changed:
        changed = False
        for name, names in parts.items():
            collected = tuple(dict.fromkeys(rule for part in names for rule in rules[part]))
            changed = changed or len(collected) != len(rules[name])
            rules[name] = collected
    return tuple(_with_rules(role, rules) for role in found)


def _parts(role: Role, cluster: Iterable[Role]) -> tuple[str, ...]:
    others = sorted((other for other in cluster if other.name != role.name), key=lambda other: other.name)
    selectors = role.aggregates or ()
    return tuple(other.name for selector in selectors for other in others if selector.selects(other.labels))


def _with_rules(role: Role, rules: dict[str, tuple[PolicyRule, ...]]) -> Role:
    if role.kind != CLUSTER_ROLE or role.aggregates is None:
        return role
    return replace(role, rules=rules[role.name])
