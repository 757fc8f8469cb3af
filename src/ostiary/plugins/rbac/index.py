"""The rbac policy, indexed by subject, so that a decision looks only at bindings of its user. Pure.

    subject              -> its bindings for the whole cluster     opened into a `SubjectScope`
    (subject, namespace) -> its bindings there                     when first asked for

Called by the rbac provider for each decision. It is built whole from manifests, and never changed: a new policy is a
new index. A decision looks up the user's name and each of the groups, so its cost does not depend on how many bindings
there are for others. Most entries of a large policy are never looked up, so they are compiled when they first are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias, TypeVar

from ostiary.core.rules.discovery import gives_more_than_discovery
from ostiary.core.rules.matching import RuleTable, resource_keys
from ostiary.core.users.implied_groups import implied_groups
from ostiary.interfaces.authorization import Subject
from ostiary.model import Decision, RequestInfo, UserInfo, Verdict
from ostiary.plugins.rbac.aggregation import aggregate_roles
from ostiary.plugins.rbac.presence import namespace_of, presence
from ostiary.wire.rbac import (
    ANY,
    ROLE,
    SERVICE_ACCOUNT,
    USER,
    USER_GROUP,
    Binding,
    Manifests,
    PolicyRule,
    Role,
    describe,
)

MASTERS = "system:masters"

# For so many users and namespaces it is remembered what they have. It is found again in a moment.
MOST_SEEN, MOST_CHARACTERS = 8192, 4096
# How many dangling bindings of a subject a reason lists.
MOST_TOLD = 5

K = TypeVar("K", str, tuple[str, str])
RoleKey = tuple[str, str, str]

_MASTERS_MAY = Decision(Verdict.ALLOW, f"members of {MASTERS} may do everything")
_NO_OPINION = Decision(Verdict.NO_OPINION)
_HIDDEN = Decision(Verdict.NO_OPINION, hidden=True)


class CompiledRole:
    """A role, ready to be asked. All its bindings share it."""

    __slots__ = ("presence", "rules", "table")

    def __init__(self, rules: tuple[PolicyRule, ...]) -> None:
        self.rules = rules
        self.table = RuleTable((rule, rule) for rule in rules)
        self.presence = presence(rules)

    def rule_for(self, request: RequestInfo) -> PolicyRule | None:
        if not request.is_resource:
            return self.table.find_url(request.verb, request.path)
        keys = resource_keys(request.resource, request.subresource)
        return self.table.find(request.verb, request.api_group, keys, request.name)


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


# One binding as it is, several in a list, and from the first question on a `SubjectScope`.
_Entry: TypeAlias = "Binding | list[Binding] | SubjectScope"


class Index:
    """One policy, in force or about to be."""

    def __init__(self, manifests: Manifests, *, revision: int = 0) -> None:
        self.revision = revision
        self.bindings = manifests.bindings
        self.roles: dict[RoleKey, Role] = {
            (role.kind, role.namespace, role.name): role for role in aggregate_roles(manifests.roles)
        }
        self._compiled: dict[RoleKey, CompiledRole] = {}
        self._tables: dict[tuple[RoleKey, ...], RuleTable[int]] = {}
        self._cluster: dict[str, dict[str, _Entry]] = {USER: {}, USER_GROUP: {}}
        self._local: dict[str, dict[tuple[str, str], _Entry]] = {USER: {}, USER_GROUP: {}}
        self._groups: set[str] = set()
        self._seen: dict[tuple[str, tuple[str, ...], str], list[SubjectScope]] = {}
        self._with_rights: frozenset[tuple[str, str]] | None = None
        for binding in manifests.bindings:
            self._add(binding)
        bound_roles = {role_key(binding) for binding in manifests.bindings}
        self.missing_roles = bound_roles - self.roles.keys()
        self.named_resources = frozenset(
            resource
            for key in bound_roles & self.roles.keys()
            for rule in self.roles[key].rules
            if rule.resource_names
            for resource in rule.resources
        )

    # --- building ---

    def _add(self, binding: Binding) -> None:
        namespace = binding.namespace
        for subject in binding.subjects:
            kind, name = holder_of(subject, namespace)
            if kind == USER_GROUP:
                self._groups.add(name)
            elif not name:
                continue
            if namespace:
                _file(self._local[kind], (name, namespace), binding)
            else:
                _file(self._cluster[kind], name, binding)

    def role_of(self, binding: Binding) -> CompiledRole | None:
        """None if the binding refers to a role that does not exist."""
        key = role_key(binding)
        compiled = self._compiled.get(key)
        if compiled is None and (role := self.roles.get(key)) is not None:
            compiled = self._compiled[key] = CompiledRole(role.rules)
        return compiled

    def _open(self, entry: Binding | list[Binding], kind: str, name: str) -> SubjectScope:
        grants, dangling = [], []
        for binding in [entry] if isinstance(entry, Binding) else entry:
            role = self.role_of(binding)
            if role is None:
                dangling.append(binding)
                continue
            subjects = (with_namespace(subject, binding) for subject in binding.subjects)
            subject = next(subject for subject in subjects if holder_of(subject, "") == (kind, name))
            grants.append(BoundRole(binding, subject, role))
        return SubjectScope(grants, self._table(grants), tuple(dangling[:MOST_TOLD]))

    def _table(self, grants: list[BoundRole]) -> RuleTable[int]:
        key = tuple(role_key(grant.binding) for grant in grants)
        table = self._tables.get(key)
        if table is None:
            rules = ((rule, number) for number, grant in enumerate(grants) for rule in grant.role.rules)
            table = self._tables[key] = RuleTable(rules)
        return table

    # --- deciding ---

    def decide(self, user: UserInfo, request: RequestInfo) -> Decision:
        if MASTERS in user.groups:
            return _MASTERS_MAY
        scopes = self.scopes(user, request.namespace if request.is_resource else "")
        grant = _find(scopes, request)
        return self._refusal(user, request, scopes) if grant is None else grant.allowed

    def grant_for(self, user: UserInfo, request: RequestInfo) -> BoundRole | None:
        """A grant that allows *request*."""
        return _find(self.scopes(user, request.namespace if request.is_resource else ""), request)

    def scopes(self, user: UserInfo, namespace: str) -> list[SubjectScope]:
        """What *user* has by name and by each group: in the cluster first, then in *namespace*, unless it is empty."""
        key = (user.username, user.groups, namespace)
        scopes = self._seen.get(key)
        if scopes is None:
            scopes = self._scopes(user, namespace)
            # Of names that are made up to fill the memory nothing is remembered.
            if len(user.username) + len(namespace) + sum(map(len, user.groups)) <= MOST_CHARACTERS:
                if len(self._seen) >= MOST_SEEN:
                    self._seen.clear()
                self._seen[key] = scopes
        return scopes

    def _scopes(self, user: UserInfo, namespace: str) -> list[SubjectScope]:
        username, mentioned = user.username, self._groups
        groups = [group for group in (*user.groups, *implied_groups(user)) if group in mentioned]
        scopes = [self._scope_of(self._cluster[USER], username, USER, username)]
        scopes += [self._scope_of(self._cluster[USER_GROUP], group, USER_GROUP, group) for group in groups]
        if namespace:
            local = self._local[USER_GROUP]
            scopes.append(self._scope_of(self._local[USER], (username, namespace), USER, username))
            scopes += [self._scope_of(local, (group, namespace), USER_GROUP, group) for group in groups]
        return [scope for scope in scopes if scope is not None]

    def _scope_of(self, table: dict[K, _Entry], key: K, kind: str, name: str) -> SubjectScope | None:
        entry = table.get(key)
        if entry is None or isinstance(entry, SubjectScope):
            return entry
        # Two threads may both open it, and then they make the same.
        opened = table[key] = self._open(entry, kind, name)
        return opened

    def mentions(self, group: str) -> bool:
        return group in self._groups

    def gives_rights(self, user: UserInfo) -> bool:
        """Whether *user* has a rule, in whatever namespace, that gives more than discovery."""
        if self._with_rights is None:
            # All at once, and once: a question then costs as little as any other.
            self._with_rights = frozenset(self._holders_with_rights())
        who = [(USER, user.username), *((USER_GROUP, group) for group in (*user.groups, *implied_groups(user)))]
        return MASTERS in user.groups or not self._with_rights.isdisjoint(who)

    def _holders_with_rights(self) -> Iterator[tuple[str, str]]:
        for binding in self.bindings:
            role = self.roles.get(role_key(binding))
            rules = () if role is None else role.rules
            if binding.namespace:
                # A RoleBinding gives rules for paths to nobody.
                rules = tuple(rule for rule in rules if rule.resources)
            if any(map(gives_more_than_discovery, rules)):
                yield from (holder_of(subject, binding.namespace) for subject in binding.subjects)

    def groups(self) -> frozenset[str]:
        """Every group that the policy mentions, and the one that needs no policy."""
        return frozenset((*self._groups, MASTERS))

    def _refusal(self, user: UserInfo, request: RequestInfo, scopes: list[SubjectScope]) -> Decision:
        namespace = namespace_of(request)
        if namespace != request.namespace:
            scopes = self.scopes(user, namespace)
        is_hidden = bool(namespace) and not any(scope.knows(namespace) for scope in scopes)
        missing = missing_roles(scopes)
        if not missing:
            return _HIDDEN if is_hidden else _NO_OPINION
        return Decision(Verdict.NO_OPINION, f"RBAC: {missing}", is_hidden)


def role_key(binding: Binding) -> RoleKey:
    """Where its role is found. A ClusterRoleBinding has no namespace, so that it never finds a Role."""
    return binding.role_kind, binding.namespace if binding.role_kind == ROLE else "", binding.role_name


def is_implied(group: str, user: UserInfo) -> bool:
    """Whether *user* is in *group* though the token does not say so."""
    return group in implied_groups(user)


def with_namespace(subject: Subject, binding: Binding) -> Subject:
    """A ServiceAccount without a namespace is one of the RoleBinding's namespace."""
    if subject.kind != SERVICE_ACCOUNT or subject.namespace or not binding.namespace:
        return subject
    return replace(subject, namespace=binding.namespace)


def missing_roles(scopes: Iterable[SubjectScope]) -> str:
    """What the user lacks because a binding refers to a role that does not exist; empty if there is no such binding."""
    dangling = dict.fromkeys(binding for scope in scopes if scope.dangling for binding in scope.dangling)
    return "; ".join(f"{binding} refers to {binding.role}, which does not exist" for binding in dangling)


def holder_of(subject: Subject, namespace: str) -> tuple[str, str]:
    """Whose requests a subject speaks of: the kind, User or Group, and the name; no name if it speaks of nobody's."""
    if subject.kind == SERVICE_ACCOUNT:
        namespace = subject.namespace or namespace
        return USER, f"system:serviceaccount:{namespace}:{subject.name}" if namespace else ""
    return (subject.kind, subject.name) if subject.kind in (USER, USER_GROUP) else (USER, "")


def _file(table: dict[K, _Entry], key: K, binding: Binding) -> None:
    entry = table.get(key)
    if entry is None:
        table[key] = binding
    elif isinstance(entry, list):
        # A binding may name somebody twice.
        if entry[-1] is not binding:
            entry.append(binding)
    elif isinstance(entry, Binding) and entry is not binding:
        table[key] = [entry, binding]


def _find(scopes: list[SubjectScope], request: RequestInfo) -> BoundRole | None:
    verb = request.verb
    if not request.is_resource:
        for scope in scopes:
            at = scope.table.find_url(verb, request.path)
            if at is not None:
                return scope.grants[at]
        return None
    keys = resource_keys(request.resource, request.subresource)
    group, name = request.api_group, request.name
    for scope in scopes:
        at = scope.table.find(verb, group, keys, name)
        if at is not None:
            return scope.grants[at]
    return None
