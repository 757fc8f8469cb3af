"""ClusterRoles that are made of others: collects their rules, as a controller does in a cluster. Pure.

Called by `ostiary.plugins.rbac.index` when it is built. In a cluster a controller writes the rules into the role, and
runs again until nothing changes any more. Files have no controller, so the same is computed when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ostiary.wire.rbac import CLUSTER_ROLE, PolicyRule, Role

_Rules = Mapping[str, tuple[PolicyRule, ...]]
_Parts = Mapping[str, tuple[str, ...]]


def aggregate_roles(roles: Iterable[Role]) -> tuple[Role, ...]:
    """*roles*, each with the rules it has in the end.

    The rules of an aggregating role are those of the roles that its selectors find: selector by selector, the roles by
    name, itself left out, equal rules once. They replace the rules that the file lists as its own. Where there are none
    to be found the role keeps its own, as in a cluster: the controller writes nothing then. Roles that select each
    other and find nothing else have no rules; in a cluster it depends on which of them was written first.
    """
    all_roles = tuple(roles)
    cluster = {role.name: role for role in all_roles if role.kind == CLUSTER_ROLE}
    parts = {name: _parts(role, cluster.values()) for name, role in cluster.items() if role.aggregates is not None}
    own = {name: role.rules for name, role in cluster.items()}
    # A role that keeps its own rules can be selected by others, which then lose theirs.
    keeping = {name for name in parts if own[name]}
    while True:
        rules = _resolve_rules({name: own[name] for name in cluster if name in keeping or name not in parts}, parts)
        replaced = {name for name in keeping if _collect_rules(parts[name], rules)}
        if not replaced:
            return tuple(_with_rules(role, rules) for role in all_roles)
        keeping -= replaced


def _resolve_rules(given: _Rules, parts: _Parts) -> _Rules:
    """All rules that there are in the end, where those of the roles in *given* do not change."""
    rules = {**given, **{name: () for name in parts if name not in given}}
    changed = True
    # Rules are only ever added, so this ends even when two roles are made of each other.
    while changed:
        changed = False
        for name, names in parts.items():
            if name not in given:
                collected = _collect_rules(names, rules)
                changed = changed or len(collected) != len(rules[name])
                rules[name] = collected
    return rules


def _collect_rules(names: tuple[str, ...], rules: _Rules) -> tuple[PolicyRule, ...]:
    return tuple(dict.fromkeys(rule for name in names for rule in rules[name]))


def _parts(role: Role, cluster: Iterable[Role]) -> tuple[str, ...]:
    others = sorted((other for other in cluster if other.name != role.name), key=lambda other: other.name)
    selectors = role.aggregates or ()
    return tuple(other.name for selector in selectors for other in others if selector.selects(other.labels))


def _with_rules(role: Role, rules: _Rules) -> Role:
    if role.kind != CLUSTER_ROLE or role.aggregates is None:
        return role
    return replace(role, rules=rules[role.name])
