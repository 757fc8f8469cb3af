"""ClusterRoles that are made of others: collects their rules, as a controller does in a cluster. Pure.

Called by `ostiary.plugins.rbac.policy` for each change of a ClusterRole. In a cluster a controller writes the rules
into the role, and runs again until nothing changes any more. Files have no controller, so the same is computed here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ostiary.wire.rbac import CLUSTER_ROLE, PolicyRule, Role

_Rules = Mapping[str, tuple[PolicyRule, ...]]
_Parts = Mapping[str, tuple[str, ...]]


class Aggregation:
    """ClusterRoles by name, each with the rules it has in the end. One thread uses it.

    The rules of an aggregating role are those of the roles that its selectors find: selector by selector, the roles by
    name, itself left out, equal rules once. They replace the rules that the file lists as its own. Where there are none
    to be found the role keeps its own, as in a cluster: the controller writes nothing then. Roles that select each
    other and find nothing else have no rules; in a cluster it depends on which of them was written first.
    """

    def __init__(self) -> None:
        # As they are written.
        self._roles: dict[str, Role] = {}
        # For each aggregating role and each of its selectors, the names that it finds.
        self._selected: dict[str, list[set[str]]] = {}
        self._rules: dict[str, tuple[PolicyRule, ...]] = {}

    def change(self, changes: Mapping[str, Role | None]) -> dict[str, Role | None]:
        """Take up *changes*; every role that is now another one, with its rules, or None if it is gone."""
        changed = dict(changes)
        concerned = False
        for name, role in changed.items():
            concerned = self._select_again(name, self._roles.get(name), role) or concerned
            if role is None:
                self._roles.pop(name, None)
            else:
                self._roles[name] = role
        for name, role in changed.items():
            if role is not None and role.aggregates is not None:
                self._selected[name] = self._all_selected(role)
                concerned = True
        if concerned:
            changed.update(self._aggregate())
        for name, role in changed.items():
            if role is not None and role.aggregates is not None:
                changed[name] = replace(role, rules=self._rules[name])
        return changed

    def _select_again(self, name: str, old: Role | None, new: Role | None) -> bool:
        """File the role *name* with all that select it; says whether any does, or did."""
        concerned = self._selected.pop(name, None) is not None
        self._rules.pop(name, None)
        for other, selected in self._selected.items():
            for selector, names in zip(self._roles[other].aggregates or (), selected, strict=True):
                if new is not None and selector.selects(new.labels):
                    names.add(name)
                    concerned = True
                elif old is not None and name in names:
                    names.discard(name)
                    concerned = True
        return concerned

    def _all_selected(self, role: Role) -> list[set[str]]:
        others = [other for other in self._roles.values() if other.name != role.name]
        return [
            {other.name for other in others if selector.selects(other.labels)} for selector in role.aggregates or ()
        ]

    def _aggregate(self) -> dict[str, Role]:
        """Collect all rules anew; the aggregating roles that have others now."""
        parts = {
            name: tuple(part for names in selected for part in sorted(names))
            # In a fixed order: where roles select each other, it says in which order they have their rules.
            for name, selected in sorted(self._selected.items())
        }
        used = {part for names in parts.values() for part in names} | parts.keys()
        rules = _aggregated_rules({name: self._roles[name].rules for name in used}, parts)
        changed = {}
        for name in parts:
            if not _are_identical(self._rules.get(name), rules[name]):
                self._rules[name] = rules[name]
                changed[name] = self._roles[name]
        return changed


def aggregate_roles(roles: Iterable[Role]) -> tuple[Role, ...]:
    """*roles*, each with the rules it has in the end."""
    all_roles = tuple(roles)
    cluster = Aggregation().change({role.name: role for role in all_roles if role.kind == CLUSTER_ROLE})
    return tuple((cluster[role.name] or role) if role.kind == CLUSTER_ROLE else role for role in all_roles)


def _are_identical(before: tuple[PolicyRule, ...] | None, after: tuple[PolicyRule, ...]) -> bool:
    # Not equality: a rule that stands at another place is told with it.
    return before is not None and len(before) == len(after) and all(map(operator.is_, before, after))


def _aggregated_rules(own: _Rules, parts: _Parts) -> _Rules:
    # A role that keeps its own rules can be selected by others, which then lose theirs.
    keeping = {name for name in parts if own[name]}
    while True:
        rules = _resolve_rules({name: own[name] for name in own if name in keeping or name not in parts}, parts)
        replaced = {name for name in keeping if _collect_rules(parts[name], rules)}
        if not replaced:
            return rules
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
