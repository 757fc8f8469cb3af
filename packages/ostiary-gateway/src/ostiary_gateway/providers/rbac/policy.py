"""The RBAC policy in force: roles and bindings by key, aggregated ClusterRoles, and the index for decisions.

files, or a followed cluster  ->  replace (everything) | apply (changes)  ->  Index, published in one step
"""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from ostiary.core.policy_rules import PolicyRule
from ostiary.errors import ConfigurationError
from ostiary.model import Problem
from ostiary_gateway.providers.rbac.defaults import DEFAULT_BINDINGS, DEFAULT_ROLES
from ostiary_gateway.providers.rbac.index import Index, IndexedPolicy, ObjectKey, holder_of, role_key
from ostiary_gateway.providers.rbac.long_work import free_dicts, free_lists, long_work
from ostiary_gateway.providers.rbac.lookup import Held, RoleCompiler, RoleKey, ShardedMap, change_held
from ostiary_gateway.wire.rbac import CLUSTER_ROLE, ROLE, USER_GROUP, Binding, Manifests, Role

_Rules = Mapping[str, tuple[PolicyRule, ...]]
_Parts = Mapping[str, tuple[str, ...]]


class Aggregation:
    """ClusterRoles by name, each with its aggregated rules. Not thread-safe.

    In a cluster a controller writes these rules into the role, and runs again until nothing changes. Files have no
    controller, so the rules are computed here. The rules of an aggregating role are those of the roles that its
    selectors match: selector by selector, the roles by name, itself excluded, duplicates once. They replace the rules
    that the role lists itself. If no rules are selected the role keeps its own, as in a cluster, where the controller
    writes nothing then. Roles that select only each other have no rules; in a cluster that depends on which of them
    was written first.
    """

    def __init__(self) -> None:
        # The roles as written in the manifests.
        self._roles: dict[str, Role] = {}
        # For each aggregating role and each of its selectors, the names of the roles that it matches.
        self._selected: dict[str, list[set[str]]] = {}
        self._rules: dict[str, tuple[PolicyRule, ...]] = {}

    def change(self, changes: Mapping[str, Role | None]) -> dict[str, Role | None]:
        """Apply *changes*. Return every role that changed, with its aggregated rules, or None if it was removed."""
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
        """Update the selections that the role *name* is in. Return whether any aggregated rules may change."""
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
        """Recompute all aggregated rules. Return the aggregating roles whose rules changed."""
        parts = {
            name: tuple(part for names in selected for part in sorted(names))
            # In a fixed order: where roles select each other, it determines the order of their rules.
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
    """Return *roles*, each with its aggregated rules."""
    all_roles = tuple(roles)
    cluster = Aggregation().change({role.name: role for role in all_roles if role.kind == CLUSTER_ROLE})
    return tuple((cluster[role.name] or role) if role.kind == CLUSTER_ROLE else role for role in all_roles)


def _are_identical(before: tuple[PolicyRule, ...] | None, after: tuple[PolicyRule, ...]) -> bool:
    # Identity instead of equality: an equal rule may have another position, which explanations print.
    return before is not None and len(before) == len(after) and all(map(operator.is_, before, after))


def _aggregated_rules(own: _Rules, parts: _Parts) -> _Rules:
    # A role that keeps its own rules can be selected by others, which then lose their own.
    keeping = {name for name in parts if own[name]}
    while True:
        rules = _resolve_rules({name: own[name] for name in own if name in keeping or name not in parts}, parts)
        replaced = {name for name in keeping if _collect_rules(parts[name], rules)}
        if not replaced:
            return rules
        keeping -= replaced


def _resolve_rules(given: _Rules, parts: _Parts) -> _Rules:
    """Return the rules of all roles, where those of the roles in *given* are fixed."""
    rules = {**given, **{name: () for name in parts if name not in given}}
    changed = True
    # Rules are only ever added, so this ends even if two roles select each other.
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


# Maximum number of objects. A binding takes about 700 bytes, and a reload must not exhaust the memory of the process.
MAX_OBJECTS = 2_000_000

log = logging.getLogger("ostiary.rbac")

_Objects = dict[ObjectKey, "Role | Binding | None"]
_NOTHING = Manifests()
_Roles = ShardedMap[RoleKey, Role]
_HolderChanges = dict[str, tuple[list[Binding], list[Binding]]]


class ObjectChange(NamedTuple):
    """An object in its current state, or None if it was removed."""

    key: ObjectKey
    item: Role | Binding | None


def key_of(item: Role | Binding) -> ObjectKey:
    return ObjectKey(item.kind, item.namespace, item.name)


_DEFAULTS: dict[ObjectKey, Role | Binding] = {key_of(item): item for item in (*DEFAULT_ROLES, *DEFAULT_BINDINGS)}


class RbacPolicy:
    """Roles and bindings, with the *defaults* of a cluster unless an object with the same key replaces them.

    One thread at a time may change a policy. Any number of threads may read `index`; each sees one complete policy with
    its revision. The cost of a change depends on its size only: the next index shares everything else with the last.

    `replace` and `apply` return whether any decision may change; positions and comments do not count. Both raise
    `ConfigurationError` for more than `MAX_OBJECTS`, and then leave the policy as it was.
    """

    def __init__(self, manifests: Manifests = _NOTHING, *, defaults: bool = True) -> None:
        self._defaults = _DEFAULTS if defaults else {}
        self._compiler = RoleCompiler()
        self._aggregation = Aggregation()
        # Number of bindings of each role, and for each resource the number of bound roles with resourceNames for it.
        self._bound: dict[RoleKey, int] = {}
        self._named: Counter[str] = Counter()
        # Roles that became missing with the last change: newly bound, or removed.
        self.newly_missing: tuple[RoleKey, ...] = ()
        self.index = Index(IndexedPolicy(), revision=0, compiler=self._compiler)
        self._put_into_force({**self._defaults, **_by_key(manifests)}, is_change=True)

    def replace(self, manifests: Manifests) -> bool:
        """Put exactly *manifests* into force."""
        objects = _by_key(manifests)
        gone = dict.fromkeys(key for key in self.index.policy.objects if key not in objects)
        return self._commit({**gone, **objects})

    def apply(self, changes: Iterable[ObjectChange]) -> bool:
        """Put *changes* into force in one step. The last change of a key wins."""
        return self._commit(dict(changes))

    def get(self, key: ObjectKey) -> Role | Binding | None:
        """Return the object in force, or None if it is one of the defaults."""
        item = self.index.policy.objects.get(key)
        return None if item is None or item is self._defaults.get(key) else item

    def own_objects(self) -> Iterator[Role | Binding]:
        """Yield all objects except the defaults, in no particular order."""
        objects = self.index.policy.objects
        return (item for key, item in objects.items() if item is not self._defaults.get(key))

    # --- one change ---

    def _commit(self, changes: _Objects) -> bool:
        """Put *changes* into force. Empties *changes*."""
        with long_work():
            effective, is_change = self._effective_changes(changes)
            self.newly_missing = ()
            if effective:
                self._put_into_force(effective, is_change=is_change)
            free_dicts(effective, changes)
            return is_change

    def _effective_changes(self, changes: _Objects) -> tuple[_Objects, bool]:
        """Return the changes that differ from the objects in force, and whether any decision may change."""
        objects = self.index.policy.objects
        effective: _Objects = {}
        is_change = False
        for key, item in changes.items():
            after = self._defaults.get(key) if item is None else item
            before = objects.get(key)
            if after is not before:
                effective[key] = after
                is_change = is_change or after != before
        return effective, is_change

    def _put_into_force(self, changes: _Objects, *, is_change: bool) -> None:
        """Publish the next index. Each of *changes* differs from the object in force, if only by its position."""
        policy = self.index.policy
        objects = policy.objects.with_changes(changes)
        if len(objects) > MAX_OBJECTS:
            message = f"the RBAC policy holds more than {MAX_OBJECTS:,} objects"
            problem = Problem(message, hint="leave out the bindings that nobody uses")
            raise ConfigurationError("the RBAC policy is too large", problems=[problem], code="config-invalid")
        removed = [item for key in changes if isinstance(item := policy.objects.get(key), Binding)]
        added = [item for item in changes.values() if isinstance(item, Binding)]
        changed_roles = self._change_roles(changes)
        roles = policy.roles.with_changes(changed_roles)
        missing = self._count_bound_roles(removed, added, policy.roles, roles, changed_roles)
        users, groups = _by_holder(removed, added)
        after = IndexedPolicy(
            roles,
            objects,
            _with_holders(policy.users, users),
            _with_holders(policy.groups, groups),
            policy.missing_roles.with_changes(missing),
            policy.named_resources if self._named.keys() == policy.named_resources else frozenset(self._named),
        )
        leftovers = policy.parts()
        # The index has its revision, so a reader always gets both from the same policy.
        self.index = Index(after, revision=self.index.revision + is_change, compiler=self._compiler)
        del policy
        free_lists(leftovers)
        free_lists(removed, added)
        free_dicts(users, groups)
        self.newly_missing = tuple(key for key, is_missing in missing.items() if is_missing)

    def _change_roles(self, changes: _Objects) -> dict[RoleKey, Role | None]:
        """Return the roles whose rules changed, including those that aggregate roles of *changes*."""
        changed: dict[RoleKey, Role | None] = {}
        of_cluster: dict[str, Role | None] = {}
        for key, item in changes.items():
            if not isinstance(item, Binding):
                if key.kind == CLUSTER_ROLE:
                    of_cluster[key.name] = item
                elif key.kind == ROLE:
                    changed[key] = item
        for name, role in self._aggregation.change(of_cluster).items():
            changed[CLUSTER_ROLE, "", name] = role
        return changed

    def _count_bound_roles(
        self,
        removed: list[Binding],
        added: list[Binding],
        before: _Roles,
        after: _Roles,
        changed_roles: Iterable[RoleKey],
    ) -> dict[RoleKey, bool | None]:
        """Update the counts of bound roles. Return True for roles that became missing, None for those found again."""
        counts = Counter(map(role_key, added))
        counts.subtract(map(role_key, removed))
        missing: dict[RoleKey, bool | None] = {}
        for key in {*counts, *changed_roles}:
            bound = self._bound.get(key, 0)
            still_bound = bound + counts[key]
            if still_bound:
                self._bound[key] = still_bound
            elif bound:
                del self._bound[key]
            old, new = before.get(key), after.get(key)
            if old is new and bool(bound) is bool(still_bound):
                continue
            self._named.subtract(_named_resources(old) if bound else ())
            self._named.update(_named_resources(new) if still_bound else ())
            was_missing, is_missing = bool(bound and old is None), bool(still_bound and new is None)
            if was_missing is not is_missing:
                missing[key] = is_missing or None
        self._named = +self._named
        return missing


def _by_key(manifests: Manifests) -> dict[ObjectKey, Role | Binding]:
    items: Iterable[Role | Binding] = chain(manifests.roles, manifests.bindings)
    return {key_of(item): item for item in items}


def _named_resources(role: Role | None) -> set[str]:
    rules = () if role is None else role.rules
    return {resource for rule in rules if rule.resource_names for resource in rule.resources}


def _by_holder(removed: list[Binding], added: list[Binding]) -> tuple[_HolderChanges, _HolderChanges]:
    """For each user and each group, the bindings that were removed and those that were added."""
    users: _HolderChanges = {}
    groups: _HolderChanges = {}
    for position, bindings in enumerate((removed, added)):
        for binding in bindings:
            # A binding may have the same subject twice.
            for kind, name in {holder_of(subject, binding.namespace) for subject in binding.subjects}:
                if kind == USER_GROUP:
                    groups.setdefault(name, ([], []))[position].append(binding)
                elif name:
                    users.setdefault(name, ([], []))[position].append(binding)
    return users, groups


def _with_holders(holders: ShardedMap[str, Held], changes: _HolderChanges) -> ShardedMap[str, Held]:
    return holders.with_changes(
        {name: change_held(holders.get(name), removed, added) for name, (removed, added) in changes.items()}
    )


def warn_of_missing_roles(policy: RbacPolicy) -> None:
    """Log the roles that became missing with the last change. Bindings of a missing role grant nothing."""
    missing = policy.newly_missing
    if not missing:
        return
    kind, namespace, name = min(missing)
    where = f' in namespace "{namespace}"' if namespace else ""
    what = "a role that the RBAC policy binds does not exist:"
    if len(missing) > 1:
        what = f"{len(missing)} roles that the RBAC policy binds do not exist, such as"
    log.warning('%s %s "%s"%s', what, kind, name, where)
