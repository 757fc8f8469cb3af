"""The policy in force: roles and bindings by key, and the index that decisions look into.

    files, or a watched cluster  ->  replace (everything) | apply (what changed)  ->  Index, published in one step

Called by the rbac provider and by whatever follows a source of objects. One thread at a time changes a policy; any
number of threads read `index`, each of them one whole policy with its revision. A change costs as much as what it
changes: the next index shares all the rest with the one before.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from ostiary.errors import ConfigurationError
from ostiary.model import Problem
from ostiary.plugins.rbac.aggregation import Aggregation
from ostiary.plugins.rbac.defaults import DEFAULT_BINDINGS, DEFAULT_ROLES
from ostiary.plugins.rbac.index import Index, IndexedPolicy, ObjectKey, holder_of, role_key
from ostiary.plugins.rbac.long_work import free_dicts, free_lists, long_work
from ostiary.plugins.rbac.lookup.compiled_role import RoleCompiler, RoleKey
from ostiary.plugins.rbac.lookup.holders import Held, change_held
from ostiary.plugins.rbac.lookup.sharded_map import ShardedMap
from ostiary.wire.rbac import CLUSTER_ROLE, ROLE, USER_GROUP, Binding, Manifests, Role

__all__ = ["MAX_OBJECTS", "ObjectChange", "ObjectKey", "RbacPolicy", "key_of", "warn_of_missing_roles"]

# What a policy may hold. A binding takes about 700 bytes, and a reload must not end the process for want of memory.
MAX_OBJECTS = 2_000_000

log = logging.getLogger("ostiary.rbac")

_Objects = dict[ObjectKey, "Role | Binding | None"]
_NOTHING = Manifests()
_Roles = ShardedMap[RoleKey, Role]
_HolderChanges = dict[str, tuple[list[Binding], list[Binding]]]


class ObjectChange(NamedTuple):
    """An object as it is now, or None if it is gone."""

    key: ObjectKey
    item: Role | Binding | None


def key_of(item: Role | Binding) -> ObjectKey:
    return ObjectKey(item.kind, item.namespace, item.name)


_DEFAULTS: dict[ObjectKey, Role | Binding] = {key_of(item): item for item in (*DEFAULT_ROLES, *DEFAULT_BINDINGS)}


class RbacPolicy:
    """Roles and bindings, with the *defaults* of a cluster where no object of the same key replaces them.

    `replace` and `apply` say whether anything changed that decides something; places and comments do not. Both raise
    `ConfigurationError` for more than `MAX_OBJECTS`, and leave the policy as it was.
    """

    def __init__(self, manifests: Manifests = _NOTHING, *, defaults: bool = True) -> None:
        self._defaults = _DEFAULTS if defaults else {}
        self._compiler = RoleCompiler()
        self._aggregation = Aggregation()
        # How many bindings refer to a role, and how many bound roles have a rule with names for a resource.
        self._bound: dict[RoleKey, int] = {}
        self._named: Counter[str] = Counter()
        # Roles that were bound by the last change, or gone with it.
        self.newly_missing: tuple[RoleKey, ...] = ()
        self.index = Index(IndexedPolicy(), revision=0, compiler=self._compiler)
        self._put_into_force({**self._defaults, **_by_key(manifests)}, is_change=True)

    def replace(self, manifests: Manifests) -> bool:
        """Put *manifests* into force, and nothing else."""
        objects = _by_key(manifests)
        gone = dict.fromkeys(key for key in self.index.policy.objects if key not in objects)
        return self._commit({**gone, **objects})

    def apply(self, changes: Iterable[ObjectChange]) -> bool:
        """Put *changes* into force, all of them at once. Of several for one key the last one counts."""
        return self._commit(dict(changes))

    def get(self, key: ObjectKey) -> Role | Binding | None:
        """The object in force, unless it is one of the defaults."""
        item = self.index.policy.objects.get(key)
        return None if item is None or item is self._defaults.get(key) else item

    def own_objects(self) -> Iterator[Role | Binding]:
        """All but the defaults, in no order."""
        objects = self.index.policy.objects
        return (item for key, item in objects.items() if item is not self._defaults.get(key))

    # --- one change ---

    def _commit(self, changes: _Objects) -> bool:
        """Put *changes* into force, and empty them."""
        with long_work():
            effective, is_change = self._effective_changes(changes)
            self.newly_missing = ()
            if effective:
                self._put_into_force(effective, is_change=is_change)
            free_dicts(effective, changes)
            return is_change

    def _effective_changes(self, changes: _Objects) -> tuple[_Objects, bool]:
        """Those that are not what there is already, and whether one of them decides something."""
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
        """*changes* are all different from what there is, at least by their places."""
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
        # The index carries its revision, so a reader always gets both of the same policy.
        self.index = Index(after, revision=self.index.revision + is_change, compiler=self._compiler)
        del policy
        free_lists(leftovers)
        free_lists(removed, added)
        free_dicts(users, groups)
        self.newly_missing = tuple(key for key, is_missing in missing.items() if is_missing)

    def _change_roles(self, changes: _Objects) -> dict[RoleKey, Role | None]:
        """The roles that have other rules now, some of which are made of those in *changes*."""
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
        """Keep account of which roles are bound; the roles that are missing now, and None for those that were."""
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
    """For each user and each group the bindings that it no longer has, and those that it has now."""
    users: _HolderChanges = {}
    groups: _HolderChanges = {}
    for position, bindings in enumerate((removed, added)):
        for binding in bindings:
            # A binding may name somebody twice.
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
    """Log those that the last change left missing. Such a binding gives nothing, and the others hold."""
    missing = policy.newly_missing
    if not missing:
        return
    kind, namespace, name = min(missing)
    where = f' in namespace "{namespace}"' if namespace else ""
    what = "a role that the RBAC policy binds does not exist:"
    if len(missing) > 1:
        what = f"{len(missing)} roles that the RBAC policy binds do not exist, such as"
    log.warning('%s %s "%s"%s', what, kind, name, where)
