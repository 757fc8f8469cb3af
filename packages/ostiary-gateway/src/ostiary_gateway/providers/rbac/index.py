"""The rbac policy, indexed by subject, so that a decision looks only at bindings of its user. Pure.

    subject -> its bindings, by namespace      opened into a `SubjectScope` when first asked for

Called by the rbac provider for each decision. An index is one version of the policy and never changes: the next one
shares with it all that is the same (`ostiary_gateway.providers.rbac.policy`). A decision looks up the user's name and
each of the groups, so its cost does not depend on how many bindings there are for others. Most entries of a large
policy are never looked up, so they are compiled when they first are.
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

# For so many users and namespaces it is remembered what they have. It is found again in a moment.
MOST_SEEN, MOST_CHARACTERS = 8192, 4096
MOST_OPENED = 65_536
# How many dangling bindings of a subject a reason lists.
MOST_TOLD = 5

_MASTERS_MAY = Decision(Verdict.ALLOW, f"members of {MASTERS} may do everything")
_NO_OPINION = Decision(Verdict.NO_OPINION)
_HIDDEN = Decision(Verdict.NO_OPINION, hidden=True)


class ObjectKey(NamedTuple):
    """What an object is known by; the namespace is empty for a ClusterRole or a ClusterRoleBinding."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class IndexedPolicy:
    """What one version of the policy holds: objects as they are written, and roles with the rules they have in the end.

    `named_resources` are those for which a bound role has a rule with names; `missing_roles` are bound and not there.
    """

    roles: ShardedMap[RoleKey, Role] = field(default_factory=ShardedMap)
    objects: ShardedMap[ObjectKey, Role | Binding] = field(default_factory=ShardedMap)
    users: ShardedMap[str, Held] = field(default_factory=ShardedMap)
    groups: ShardedMap[str, Held] = field(default_factory=ShardedMap)
    missing_roles: ShardedMap[RoleKey, bool] = field(default_factory=ShardedMap)
    named_resources: frozenset[str] = frozenset()

    def parts(self) -> list[object]:
        """All that it consists of. Whoever holds these can free it part by part."""
        maps = (self.roles, self.objects, self.users, self.groups, self.missing_roles)
        return [shard for each in maps for shard in each.shards()]


class Index:
    """One version of the policy, ready to be asked. Used from any thread."""

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
        """All of them, those of the cluster first, by namespace and name. Never asked for by a request."""
        if self._sorted is None:
            bindings = {key: item for key, item in self.policy.objects.items() if isinstance(item, Binding)}
            self._sorted = tuple(bindings[key] for key in sorted(bindings))
        return self._sorted

    @property
    def missing_roles(self) -> frozenset[RoleKey]:
        return frozenset(self.policy.missing_roles)

    def role_of(self, binding: Binding) -> CompiledRole | None:
        """None if the binding refers to a role that does not exist."""
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
            # Two threads may both open it, and then they make the same.
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
        """Whether *user* has a rule, in whatever namespace, that gives more than discovery."""
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
        """Every group that the policy mentions, and the one that needs no policy."""
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
