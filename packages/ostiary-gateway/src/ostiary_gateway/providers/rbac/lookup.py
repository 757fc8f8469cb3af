"""Compiled roles and grants, the bindings of each subject, and an immutable map. Versions of the index share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from ostiary.core.policy_rules import ANY, PolicyRule, RuleTable, gives_more_than_discovery, resource_keys
from ostiary.model import Decision, RequestInfo, Verdict
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.providers.rbac.presence import presence
from ostiary_gateway.wire.rbac import Binding, Role, describe

# Maximum number of cached roles, and of cached tables. Recompiling one is cheap.
MOST_COMPILED = 8192

RoleKey = tuple[str, str, str]


class CompiledRole:
    """A role compiled for lookup. All its bindings share it."""

    __slots__ = ("_rights", "presence", "rules", "table")

    def __init__(self, rules: tuple[PolicyRule, ...]) -> None:
        self.rules = rules
        self.table = RuleTable((rule, rule) for rule in rules)
        self.presence = presence(rules)
        self._rights: tuple[bool, bool] | None = None

    def rule_for(self, request: RequestInfo) -> PolicyRule | None:
        if not request.is_resource:
            return self.table.find_url(request.verb, request.path)
        keys = resource_keys(request.resource, request.subresource)
        return self.table.find(request.verb, request.api_group, keys, request.name)

    def gives_rights(self, namespace: str) -> bool:
        """Whether the role grants more than discovery in *namespace*; in the whole cluster if it is empty."""
        if self._rights is None:
            wide = [rule for rule in self.rules if gives_more_than_discovery(rule)]
            # A RoleBinding does not grant rules for paths.
            self._rights = bool(wide), any(rule.resources for rule in wide)
        return self._rights[bool(namespace)]


class BoundRole:
    """The role of one subject through one binding."""

    __slots__ = ("_allowed", "binding", "role", "subject")

    def __init__(self, binding: Binding, subject: Subject, role: CompiledRole) -> None:
        self.binding, self.subject, self.role = binding, subject, role
        self._allowed: Decision | None = None

    @property
    def allowed(self) -> Decision:
        """The decision that names this grant. Created when the grant first allows a request."""
        if self._allowed is None:
            self._allowed = Decision(Verdict.ALLOW, f"RBAC: allowed by {self}")
        return self._allowed

    def __str__(self) -> str:
        return f"{self.binding} of {self.binding.role} to {describe(self.subject)}"


class SubjectScope:
    """The grants of one subject in one namespace, or in the whole cluster.

    `table` maps a request to the position of the grant that allows it; subjects with the same roles share it.
    `dangling` are bindings whose role does not exist.
    """

    __slots__ = ("dangling", "grants", "presence", "table")

    def __init__(self, grants: list[BoundRole], table: RuleTable[int], dangling: tuple[Binding, ...]) -> None:
        self.grants, self.table, self.dangling = grants, table, dangling
        self.presence = frozenset[str]().union(*(grant.role.presence for grant in grants))

    def knows(self, namespace: str) -> bool:
        return ANY in self.presence or namespace in self.presence


class RoleCompiler:
    """Compile each role once, and the table of each combination of roles. Thread-safe."""

    def __init__(self) -> None:
        self._roles: dict[RoleKey, CompiledRole] = {}
        self._tables: dict[tuple[CompiledRole, ...], RuleTable[int]] = {}

    def compile(self, role: Role) -> CompiledRole:
        key = (role.kind, role.namespace, role.name)
        compiled = self._roles.get(key)
        # By identity: another version of the policy may have had other rules for this role.
        if compiled is None or compiled.rules is not role.rules:
            if len(self._roles) >= MOST_COMPILED:
                self._roles = {}
            compiled = self._roles[key] = CompiledRole(role.rules)
        return compiled

    def table(self, grants: Sequence[BoundRole]) -> RuleTable[int]:
        key = tuple([grant.role for grant in grants])
        table = self._tables.get(key)
        if table is None:
            if len(self._tables) >= MOST_COMPILED:
                self._tables = {}
            rules = ((rule, number) for number, grant in enumerate(grants) for rule in grant.role.rules)
            table = self._tables[key] = RuleTable(rules)
        return table


# Up to this many bindings are searched linearly.
_FEW = 16

_Bindings = tuple[Binding, ...]
# Bindings of one subject. Most subjects have one binding, and a large policy has very many subjects, so one binding is
# stored as it is, a few are a tuple, and only many are filed by namespace. Never modified: readers may be using it.
Held: TypeAlias = "Binding | _Bindings | dict[str, Binding | _Bindings]"


def held_in(held: Held, namespace: str) -> list[Binding]:
    """Return the bindings of *namespace*, or of the whole cluster if it is empty, sorted by name."""
    if isinstance(held, dict):
        held = held.get(namespace, ())
    if isinstance(held, Binding):
        return [held] if held.namespace == namespace else []
    bindings = [binding for binding in held if binding.namespace == namespace]
    # Sorted, because the first matching binding is the one that the reason of a decision names.
    bindings.sort(key=_by_name)
    return bindings


def all_held(held: Held) -> Iterator[Binding]:
    if isinstance(held, dict):
        for bindings in held.values():
            yield from _as_tuple(bindings)
    else:
        yield from _as_tuple(held)


def change_held(held: Held | None, removed: list[Binding], added: list[Binding]) -> Held | None:
    """Return *held* without *removed* and with *added*; None if nothing is left. Bindings are compared by identity."""
    if held is None and len(added) == 1 and not removed:
        return added[0]
    if not isinstance(held, dict):
        bindings = _changed(() if held is None else _as_tuple(held), removed, added)
        return _by_namespace(bindings) if len(bindings) > _FEW else _smallest(bindings)
    changed = dict(held)
    for namespace in {binding.namespace for binding in (*removed, *added)}:
        bindings = _changed(
            _as_tuple(changed.get(namespace, ())),
            [binding for binding in removed if binding.namespace == namespace],
            [binding for binding in added if binding.namespace == namespace],
        )
        smallest = _smallest(bindings)
        if smallest is None:
            changed.pop(namespace, None)
        else:
            changed[namespace] = smallest
    if len(changed) <= _FEW and sum(len(_as_tuple(bindings)) for bindings in changed.values()) <= _FEW:
        return _smallest(tuple(all_held(changed)))
    return changed


def _changed(bindings: _Bindings, removed: list[Binding], added: list[Binding]) -> _Bindings:
    if removed:
        gone = set(map(id, removed))
        bindings = tuple(binding for binding in bindings if id(binding) not in gone)
    return (*bindings, *added)


def _by_namespace(bindings: Iterable[Binding]) -> dict[str, Binding | _Bindings]:
    filed: dict[str, list[Binding]] = {}
    for binding in bindings:
        filed.setdefault(binding.namespace, []).append(binding)
    return {namespace: part[0] if len(part) == 1 else tuple(part) for namespace, part in filed.items()}


def _smallest(bindings: _Bindings) -> Binding | _Bindings | None:
    return bindings[0] if len(bindings) == 1 else bindings or None


def _as_tuple(bindings: Binding | _Bindings) -> _Bindings:
    return (bindings,) if isinstance(bindings, Binding) else bindings


def _by_name(binding: Binding) -> str:
    return binding.name


K = TypeVar("K")
V = TypeVar("V")

# Average number of entries per shard in a new map. A map with more than four times as many is rebuilt.
_PER_SHARD = 64
_MOST_PER_SHARD = 256


class ShardedMap(Generic[K, V]):
    """An immutable mapping of which a changed copy is cheap: many small dicts.

    Readers keep using their version while the next one is built. A copy shares all dicts except those that change, so
    a change among a million entries copies some hundred of them.
    """

    __slots__ = ("_mask", "_shards", "_size")

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        items = items or {}
        count = 1
        while count * _PER_SHARD < len(items):
            count *= 2
        self._mask = mask = count - 1
        shards: list[dict[K, V]] = [{} for _ in range(count)]
        for key, value in items.items():
            shards[hash(key) & mask][key] = value
        self._shards = shards
        self._size = len(items)

    def get(self, key: K) -> V | None:
        return self._shards[hash(key) & self._mask].get(key)

    def __getitem__(self, key: K) -> V:
        return self._shards[hash(key) & self._mask][key]

    def __contains__(self, key: object) -> bool:
        return key in self._shards[hash(key) & self._mask]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for shard in self._shards:
            yield from shard

    def values(self) -> Iterator[V]:
        for shard in self._shards:
            yield from shard.values()

    def items(self) -> Iterator[tuple[K, V]]:
        for shard in self._shards:
            yield from shard.items()

    def shards(self) -> tuple[dict[K, V], ...]:
        """The dicts of this map. They must not be modified."""
        return tuple(self._shards)

    def with_changes(self, changes: Mapping[K, V | None]) -> ShardedMap[K, V]:
        """Return a copy with *changes*; the value None removes a key."""
        if not changes:
            return self
        if len(changes) * 4 > self._size:
            return ShardedMap(_changed_dict(dict(self.items()), changes))
        shards, mask, size = list(self._shards), self._mask, self._size
        copied: set[int] = set()
        for key, value in changes.items():
            at = hash(key) & mask
            if at not in copied:
                copied.add(at)
                shards[at] = dict(shards[at])
            size -= len(shards[at])
            _change_dict(shards[at], key, value)
            size += len(shards[at])
        if size > len(shards) * _MOST_PER_SHARD:
            return ShardedMap({key: value for shard in shards for key, value in shard.items()})
        copy: ShardedMap[K, V] = ShardedMap.__new__(ShardedMap)
        copy._shards, copy._mask, copy._size = shards, mask, size
        return copy


def _changed_dict(values: dict[K, V], changes: Mapping[K, V | None]) -> dict[K, V]:
    for key, value in changes.items():
        _change_dict(values, key, value)
    return values


def _change_dict(values: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
