"""Roles and grants, ready to be asked. Called by the index, all versions of which share what is compiled here. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.rules.discovery import gives_more_than_discovery
from ostiary.core.rules.matching import RuleTable, resource_keys
from ostiary.interfaces.authorization import Subject
from ostiary.model import Decision, RequestInfo, Verdict
from ostiary.plugins.rbac.presence import presence
from ostiary.wire.rbac import ANY, Binding, PolicyRule, Role, describe

# So many are kept. They are made again in a moment.
MOST_COMPILED = 8192

RoleKey = tuple[str, str, str]


class CompiledRole:
    """A role, ready to be asked. All its bindings share it."""

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
        """Whether it gives more than discovery there; in the whole cluster if *namespace* is empty."""
        if self._rights is None:
            wide = [rule for rule in self.rules if gives_more_than_discovery(rule)]
            # A RoleBinding gives rules for paths to nobody.
            self._rights = bool(wide), any(rule.resources for rule in wide)
        return self._rights[bool(namespace)]


class BoundRole:
    """One subject of one binding, and the role that it so has."""

    __slots__ = ("_allowed", "binding", "role", "subject")

    def __init__(self, binding: Binding, subject: Subject, role: CompiledRole) -> None:
        self.binding, self.subject, self.role = binding, subject, role
        self._allowed: Decision | None = None

    @property
    def allowed(self) -> Decision:
        """The decision of this grant. Made once, when it first allows something."""
        if self._allowed is None:
            self._allowed = Decision(Verdict.ALLOW, f"RBAC: allowed by {self}")
        return self._allowed

    def __str__(self) -> str:
        return f"{self.binding} of {self.binding.role} to {describe(self.subject)}"


class SubjectScope:
    """The grants of one subject in one namespace, or in the whole cluster.

    `table` gives the position of the grant that allows something; subjects with the same roles share it.
    `dangling` are bindings whose role does not exist.
    """

    __slots__ = ("dangling", "grants", "presence", "table")

    def __init__(self, grants: list[BoundRole], table: RuleTable[int], dangling: tuple[Binding, ...]) -> None:
        self.grants, self.table, self.dangling = grants, table, dangling
        self.presence = frozenset[str]().union(*(grant.role.presence for grant in grants))

    def knows(self, namespace: str) -> bool:
        return ANY in self.presence or namespace in self.presence


class RoleCompiler:
    """Compiles each role once, and the table of each combination of roles. Used from any thread."""

    def __init__(self) -> None:
        self._roles: dict[RoleKey, CompiledRole] = {}
        self._tables: dict[tuple[CompiledRole, ...], RuleTable[int]] = {}

    def compile(self, role: Role) -> CompiledRole:
        key = (role.kind, role.namespace, role.name)
        compiled = self._roles.get(key)
        # By identity: the role may have had other rules in another version of the policy.
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
