"""The rbac provider: authorize by Kubernetes roles and bindings, from files or from a cluster.

    files, or a followed cluster -> RbacPolicy -> Index      decide: one lookup in the index in force

It allows or has no opinion; it never denies. Changed files come into force at run time (`file_follow`). A policy with
errors never does; the previous policy stays in force until they are fixed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.policy_rules import ANY, PolicyRule, normalize, resource_keys
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError
from ostiary.model import Attributes, Decision, Place, Problem, RequestInfo, UserInfo
from ostiary_gateway.authorization.implied_groups import AUTHENTICATED, UNAUTHENTICATED, implied_groups
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.authorization import (
    Explanation,
    Finding,
    Grant,
    NonResourceRule,
    ResourceRule,
    Rules,
    Subject,
)
from ostiary_gateway.providers.rbac import explain, lint
from ostiary_gateway.providers.rbac.file_follow import FollowedFiles
from ostiary_gateway.providers.rbac.file_load import Paths, check_manifests
from ostiary_gateway.providers.rbac.index import MASTERS, Index, holder_of, missing_roles, with_namespace
from ostiary_gateway.providers.rbac.lookup import CompiledRole
from ostiary_gateway.providers.rbac.policy import RbacPolicy, key_of, warn_of_missing_roles
from ostiary_gateway.providers.rbac.presence import NAMESPACES
from ostiary_gateway.providers.rbac.settings import RbacSettings
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.wire.rbac import USER_GROUP, Binding, Manifests, together

if TYPE_CHECKING:
    from ostiary_gateway.providers.rbac.followed_policy import FollowedPolicy

_EVERYTHING = (PolicyRule((ANY,), (ANY,), (ANY,)), PolicyRule((ANY,), non_resource_urls=(ANY,)))


def rules_for(index: Index, user: UserInfo, namespace: str) -> Rules:
    """Return the rules of *user* in *namespace*, each once; cluster-wide rules come first.

    Rules for paths are left out where a RoleBinding refers to them, because it does not grant them.
    """
    if MASTERS in user.groups:
        return _as_rules(_EVERYTHING, _EVERYTHING)
    cluster, scopes = index.scopes(user, ""), index.scopes(user, namespace)
    missing = missing_roles(scopes)
    everywhere = _distinct(rule for scope in cluster for grant in scope.grants for rule in grant.role.rules)
    here = _distinct(rule for scope in scopes for grant in scope.grants for rule in grant.role.rules)
    return replace(_as_rules(here, everywhere), incomplete=bool(missing), error=missing)


def _distinct(rules: Iterator[PolicyRule]) -> tuple[PolicyRule, ...]:
    by_content: dict[PolicyRule, PolicyRule] = {}
    for rule in rules:
        by_content.setdefault(normalize(rule), rule)
    return tuple(by_content.values())


def _as_rules(resources: tuple[PolicyRule, ...], urls: tuple[PolicyRule, ...]) -> Rules:
    return Rules(
        tuple(
            ResourceRule(rule.verbs, rule.api_groups, rule.resources, rule.resource_names)
            for rule in resources
            if rule.resources
        ),
        tuple(NonResourceRule(rule.verbs, rule.non_resource_urls) for rule in urls if rule.non_resource_urls),
    )


def grants(index: Index) -> Iterator[Grant]:
    """Yield each subject with each of its rules. Rules for paths that a RoleBinding refers to are left out."""
    # Many bindings share one role.
    converted: dict[tuple[CompiledRole, bool], tuple[ResourceRule | NonResourceRule, ...]] = {}
    for binding in index.bindings:
        role = index.role_of(binding)
        if role is None:
            continue
        key = (role, bool(binding.namespace))
        rules = converted.get(key)
        if rules is None:
            all_rules = _as_rules(role.rules, () if binding.namespace else role.rules)
            rules = converted[key] = (*all_rules.resource_rules, *all_rules.non_resource_rules)
        for written_subject in binding.subjects:
            subject = with_namespace(written_subject, binding)
            if holder_of(subject, "")[1]:
                subject = replace(subject, via=f"{binding} of {binding.role}")
                yield from (Grant(subject, rule, binding.namespace) for rule in rules)


def who_can(index: Index, request: RequestInfo) -> tuple[Subject, ...]:
    """Return the subjects that are allowed, once per binding. ``system:masters``, which is always allowed, is first."""
    masters = Subject(USER_GROUP, MASTERS, via="may do everything, without any binding")
    return (masters, *dict.fromkeys(_who_can(index, request)))


def _who_can(index: Index, request: RequestInfo) -> Iterator[Subject]:
    # Bindings of the cluster before those of the namespace, in the order of decisions.
    for binding in sorted(index.bindings, key=lambda binding: bool(binding.namespace)):
        if binding.namespace and (not request.is_resource or binding.namespace != request.namespace):
            continue
        role = index.role_of(binding)
        if role is None or role.rule_for(request) is None:
            continue
        for written_subject in binding.subjects:
            subject = with_namespace(written_subject, binding)
            if holder_of(subject, "")[1]:
                yield replace(subject, via=f"{binding} of {binding.role}")


# Every user is in one of these groups, so no directory needs to be queried for them.
_IMPLIED = frozenset((AUTHENTICATED, UNAUTHENTICATED))


class RbacAuthorization:
    """Authorize by the RBAC manifests at *paths*, or by *policy*, which are mutually exclusive.

    *following* is the policy of a cluster and replaces both; no defaults are added to it, and `decide` raises
    `ProviderError` while it is not available. *defaults* adds the roles and bindings of a new cluster. With *watch*,
    changed files come into force within about a second; `check_now` reads them immediately. `problems` holds the errors
    of files that are not in force.

    All methods are thread-safe. Raises `ConfigurationError` if the policy has errors.
    """

    decides_quickly = True

    def __init__(
        self,
        paths: Paths = (),
        *,
        policy: Manifests | None = None,
        defaults: bool = True,
        watch: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        following: FollowedPolicy | None = None,
    ) -> None:
        paths = tuple(paths)
        if policy is not None and paths:
            raise ValueError("the policy is either in files or given")
        self.following = following
        self._files: FollowedFiles | None = None
        self._policy: RbacPolicy | FollowedPolicy
        if following is not None:
            self._policy = following
        elif policy is None:
            self._files = FollowedFiles(paths, defaults=defaults, watch=watch, clock=clock)
            self._policy = self._files.policy
        else:
            self._policy = given = RbacPolicy(check_manifests(together([policy])), defaults=defaults)
            warn_of_missing_roles(given)

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(RbacSettings, fields, context.directory)
        if settings.from_cluster is not None:
            from ostiary_gateway.providers.rbac.followed_policy import FollowedPolicy

            return cls(following=FollowedPolicy(settings.from_cluster, clock=context.clock))
        try:
            return cls(settings.paths, defaults=settings.defaults, watch=settings.watch, clock=context.clock)
        except ConfigurationError as error:
            for problem in error.problems:
                fields.problem(str(problem), "paths", problem.hint)
            return cls(clock=context.clock)

    # --- deciding ---

    def decide(self, attributes: Attributes) -> Decision:
        if self._files is not None and self._files.to_start:
            self._files.start()
        return self._policy.index.decide(attributes.user, attributes.request)

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        if self._files is not None and self._files.to_start:
            self._files.start()
        return self._policy.index.groups() - _IMPLIED

    @property
    def revision(self) -> int:
        if self._files is not None and self._files.to_start:
            self._files.start()
        return self._policy.index.revision if self.following is None else self.following.revision

    def cache_key(self, attributes: Attributes) -> Hashable:
        """The facts that the decision depends on: groups with bindings, and the name only if rules have names."""
        if self.following is not None and self.following.trouble():
            # The decision reports what is wrong, and nothing is cached.
            return ()
        index, user, request = self._policy.index, attributes.user, attributes.request
        every = (*user.groups, *implied_groups(user))
        who = (user.username, frozenset(group for group in every if index.mentions(group) or group == MASTERS))
        if not request.is_resource:
            return (*who, request.verb, request.path)
        matters = _name_matters(index, request)
        what = (request.api_group, request.resource, request.subresource, request.name if matters else None)
        return (*who, request.verb, request.namespace, *what)

    def name_matters(self, attributes: Attributes) -> bool:
        """Whether rules have resourceNames for this resource. Always true for a path that is not a resource."""
        if self.following is not None and self.following.trouble():
            return True
        return not attributes.request.is_resource or _name_matters(self._policy.index, attributes.request)

    # --- explaining ---

    def rules_for(self, user: UserInfo, namespace: str) -> Rules:
        return rules_for(self._policy.index, user, namespace)

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...]:
        return who_can(self._policy.index, attributes.request)

    def gives_rights(self, user: UserInfo) -> bool:
        return self._policy.index.gives_rights(user)

    def grants(self) -> tuple[Grant, ...]:
        return tuple(grants(self._policy.index))

    def named_subjects(self) -> tuple[tuple[Subject, Place], ...]:
        """The subjects of the files, without the defaults. Those of a cluster have no position in a file."""
        if not isinstance(self._policy, RbacPolicy):
            return ()
        bindings = sorted(
            (item for item in self._policy.own_objects() if isinstance(item, Binding)),
            key=key_of,
        )
        return tuple((subject, binding.place) for binding in bindings for subject in binding.subjects)

    def explain(self, attributes: Attributes) -> Explanation:
        return explain.explain(self._policy.index, attributes.user, attributes.request)

    @staticmethod
    def lint(paths: Paths) -> tuple[Finding, ...]:
        """Return errors and warnings about a policy, whether or not it is in force."""
        return lint.lint(paths)

    # --- following the files ---

    @property
    def problems(self) -> tuple[Problem, ...]:
        return () if self._files is None else self._files.problems

    def check_now(self) -> bool:
        """Read the files and put changes into force. Return whether decisions changed. Never raises for bad files."""
        return self._files is not None and self._files.check_now()

    async def close(self) -> None:
        """Stop following the files. The policy in force stays."""
        if self._files is not None:
            await self._files.close()


def _name_matters(index: Index, request: RequestInfo) -> bool:
    keys = resource_keys(request.resource, request.subresource)
    return request.resource == NAMESPACES or not index.named_resources.isdisjoint(keys)
