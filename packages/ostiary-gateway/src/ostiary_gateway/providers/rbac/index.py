"""The RBAC policy, indexed by subject, so that a decision looks only at bindings of its user.

    subject -> its bindings, by namespace -> `SubjectScope`, compiled on first use

A decision looks up the user's name and each group, so its cost does not depend on the bindings of other subjects. Most
entries of a large policy are never looked up, hence the compilation on first use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ostiary.core.policy_rules import resource_keys
from ostiary.model import Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.implied_groups import implied_groups
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.providers.rbac.lookup import (
    BoundRole,
    CompiledRole,
    Held,
    RoleCompiler,
    RoleKey,
    ShardedMap,
    SubjectScope,
    all_held,
    held_in,
)
from ostiary_gateway.providers.rbac.presence import namespace_of
from ostiary_gateway.wire.rbac import ROLE, SERVICE_ACCOUNT, USER, USER_GROUP, Binding, Role

MASTERS = "system:masters"

# Maximum number of users and namespaces with cached scopes, and of characters in one key. Recomputing is cheap.
MOST_SEEN, MOST_CHARACTERS = 8192, 4096
MOST_OPENED = 65_536
# Maximum number of dangling bindings of a subject that a reason lists.
MOST_TOLD = 5

_MASTERS_MAY = Decision(Verdict.ALLOW, f"members of {MASTERS} may do everything")
_NO_OPINION = Decision(Verdict.NO_OPINION)
_HIDDEN = Decision(Verdict.NO_OPINION, hidden=True)


class ObjectKey(NamedTuple):
    """The identity of an object; the namespace is empty for a ClusterRole or a ClusterRoleBinding."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class IndexedPolicy:
    """One version of the policy: objects as written, and roles with their aggregated rules.

    `named_resources` are those for which a bound role has a rule with resourceNames. `missing_roles` are bound, but do
    not exist.
    """

    roles: ShardedMap[RoleKey, Role] = field(default_factory=ShardedMap)
    objects: ShardedMap[ObjectKey, Role | Binding] = field(default_factory=ShardedMap)
    users: ShardedMap[str, Held] = field(default_factory=ShardedMap)
    groups: ShardedMap[str, Held] = field(default_factory=ShardedMap)
    missing_roles: ShardedMap[RoleKey, bool] = field(default_factory=ShardedMap)
    named_resources: frozenset[str] = frozenset()

    def parts(self) -> list[object]:
        """All dicts of this policy, so that a caller can free them one by one."""
        maps = (self.roles, self.objects, self.users, self.groups, self.missing_roles)
        return [shard for each in maps for shard in each.shards()]


class Index:
    """One version of the policy, compiled for decisions. Immutable except for caches, and thread-safe.

    The next version shares with this one everything that did not change (`ostiary_gateway.providers.rbac.policy`).
    """

    def __init__(self, policy: IndexedPolicy, *, revision: int, compiler: RoleCompiler) -> None:
        self.revision = revision
        self.policy = policy
        self.roles = policy.roles
        self.named_resources = policy.named_resources
        self._compiler = compiler
        self._holders = {USER: policy.users, USER_GROUP: policy.groups}
        self._opened: dict[tuple[str, str, str], SubjectScope] = {}
        self._seen: dict[tuple[str, tuple[str, ...], str], list[SubjectScope]] = {}
        self._with_rights: dict[tuple[str, str], bool] = {}
        self._sorted: tuple[Binding, ...] | None = None

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """All bindings, those of the cluster first, by namespace and name. Not used by requests."""
        if self._sorted is None:
            bindings = {key: item for key, item in self.policy.objects.items() if isinstance(item, Binding)}
            self._sorted = tuple(bindings[key] for key in sorted(bindings))
        return self._sorted

    @property
    def missing_roles(self) -> frozenset[RoleKey]:
        return frozenset(self.policy.missing_roles)

    def role_of(self, binding: Binding) -> CompiledRole | None:
        """Return the role of *binding*, or None if it does not exist."""
        role = self.roles.get(role_key(binding))
        return None if role is None else self._compiler.compile(role)

    # --- deciding ---

    def decide(self, user: UserInfo, request: RequestInfo) -> Decision:
        if MASTERS in user.groups:
            return _MASTERS_MAY
        scopes = self.scopes(user, request.namespace if request.is_resource else "")
        grant = _find(scopes, request)
        return self._refusal(user, request, scopes) if grant is None else grant.allowed

    def grant_for(self, user: UserInfo, request: RequestInfo) -> BoundRole | None:
        """Return a grant that allows *request*, or None."""
        return _find(self.scopes(user, request.namespace if request.is_resource else ""), request)

    def scopes(self, user: UserInfo, namespace: str) -> list[SubjectScope]:
        """Return the scopes of *user* by name and by each group: the cluster's, then those of *namespace* if set."""
        key = (user.username, user.groups, namespace)
        scopes = self._seen.get(key)
        if scopes is None:
            scopes = self._scopes(user, namespace)
            # Cache nothing for long names, which an attacker could use to exhaust the memory.
            if len(user.username) + len(namespace) + sum(map(len, user.groups)) <= MOST_CHARACTERS:
                if len(self._seen) >= MOST_SEEN:
                    self._seen.clear()
                self._seen[key] = scopes
        return scopes

    def _scopes(self, user: UserInfo, namespace: str) -> list[SubjectScope]:
        holders = [(USER, user.username)]
        holders += [(USER_GROUP, group) for group in (*user.groups, *implied_groups(user)) if self.mentions(group)]
        namespaces = ("", namespace) if namespace else ("",)
        scopes = (self._scope(kind, name, each) for each in namespaces for kind, name in holders)
        return [scope for scope in scopes if scope is not None]

    def _scope(self, kind: str, name: str, namespace: str) -> SubjectScope | None:
        held = self._holders[kind].get(name)
        if held is None:
            return None
        key = (kind, name, namespace)
        scope = self._opened.get(key)
        if scope is None and (bindings := held_in(held, namespace)):
            if len(self._opened) >= MOST_OPENED:
                self._opened.clear()
            # Two threads may both compile it, with the same result.
            scope = self._opened[key] = self._open(bindings, kind, name)
        return scope

    def _open(self, bindings: list[Binding], kind: str, name: str) -> SubjectScope:
        grants, dangling = [], []
        for binding in bindings:
            role = self.role_of(binding)
            if role is None:
                dangling.append(binding)
                continue
            subjects = (with_namespace(subject, binding) for subject in binding.subjects)
            subject = next(subject for subject in subjects if holder_of(subject, "") == (kind, name))
            grants.append(BoundRole(binding, subject, role))
        return SubjectScope(grants, self._compiler.table(grants), tuple(dangling[:MOST_TOLD]))

    def mentions(self, group: str) -> bool:
        return group in self.policy.groups

    def gives_rights(self, user: UserInfo) -> bool:
        """Whether *user* has a rule that grants more than discovery, in any namespace."""
        who = [(USER, user.username), *((USER_GROUP, group) for group in (*user.groups, *implied_groups(user)))]
        return MASTERS in user.groups or any(self._holder_has_rights(kind, name) for kind, name in who)

    def _holder_has_rights(self, kind: str, name: str) -> bool:
        held = self._holders[kind].get(name)
        if held is None:
            return False
        has_rights = self._with_rights.get((kind, name))
        if has_rights is None:
            if len(self._with_rights) >= MOST_OPENED:
                self._with_rights.clear()
            has_rights = any(
                role.gives_rights(binding.namespace)
                for binding in all_held(held)
                if (role := self.role_of(binding)) is not None
            )
            self._with_rights[kind, name] = has_rights
        return has_rights

    def groups(self) -> frozenset[str]:
        """Every group that the policy mentions, and ``system:masters``, which needs no policy."""
        return frozenset((*self.policy.groups, MASTERS))

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
    """The key of the binding's role. A ClusterRoleBinding has no namespace, so it never finds a Role."""
    return binding.role_kind, binding.namespace if binding.role_kind == ROLE else "", binding.role_name


def is_implied(group: str, user: UserInfo) -> bool:
    """Whether *user* is in *group* implicitly, without the token naming it."""
    return group in implied_groups(user)


def with_namespace(subject: Subject, binding: Binding) -> Subject:
    """Return *subject*; a ServiceAccount without a namespace gets that of the RoleBinding."""
    if subject.kind != SERVICE_ACCOUNT or subject.namespace or not binding.namespace:
        return subject
    return replace(subject, namespace=binding.namespace)


def missing_roles(scopes: Iterable[SubjectScope]) -> str:
    """Describe the bindings of the user that refer to a role that does not exist; empty if there are none."""
    dangling = dict.fromkeys(binding for scope in scopes if scope.dangling for binding in scope.dangling)
    return "; ".join(f"{binding} refers to {binding.role}, which does not exist" for binding in dangling)


def holder_of(subject: Subject, namespace: str) -> tuple[str, str]:
    """Return the kind, User or Group, and the name that *subject* matches; an empty name if it matches no user."""
    if subject.kind == SERVICE_ACCOUNT:
        namespace = subject.namespace or namespace
        return USER, f"system:serviceaccount:{namespace}:{subject.name}" if namespace else ""
    return (subject.kind, subject.name) if subject.kind in (USER, USER_GROUP) else (USER, "")


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
