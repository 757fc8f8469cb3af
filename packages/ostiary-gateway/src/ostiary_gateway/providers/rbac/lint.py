"""Find errors and likely errors in a policy, with hints on how to fix them.

A rule that can never match, or a binding of a role that does not exist, is valid for Kubernetes and silently allows
nothing. Here it is a finding. A policy that does not load is linted too; its errors come first.
"""

from __future__ import annotations

from collections.abc import Iterator

from ostiary.core.policy_rules import ANY, PolicyRule, covers, normalize
from ostiary.model import Problem
from ostiary.wire.resource_names import plural_of
from ostiary_gateway.authorization.implied_groups import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED
from ostiary_gateway.interfaces.authorization import Finding, Level
from ostiary_gateway.providers.rbac.file_load import ManifestFiles, Paths
from ostiary_gateway.providers.rbac.index import Index
from ostiary_gateway.providers.rbac.policy import RbacPolicy
from ostiary_gateway.wire.rbac import (
    CLUSTER_ROLE,
    GROUP,
    ROLE,
    USER,
    USER_GROUP,
    Binding,
    Manifests,
    Role,
    describe,
    together,
)

__all__ = ["Finding", "Level", "judge", "lint"]

_NEVER_NAMED = ("create", "deletecollection")
_RARELY_NAMED = ("list", "watch")


_EVERYBODY = {
    (USER_GROUP, AUTHENTICATED): (Level.WARNING, "everybody who can sign in"),
    (USER_GROUP, UNAUTHENTICATED): (Level.ERROR, "everybody, signed in or not"),
    (USER, ANONYMOUS): (Level.ERROR, "everybody, signed in or not"),
}


def lint(paths: Paths) -> tuple[Finding, ...]:
    """Lint the policy at *paths*, files and directories. Never raises for an invalid policy."""
    return judge(together(ManifestFiles(paths).read().values()))


def judge(manifests: Manifests) -> tuple[Finding, ...]:
    index = RbacPolicy(manifests).index
    findings = [Finding(Level.ERROR, "invalid", problem) for problem in manifests.problems]
    for role in manifests.roles:
        findings += _role_findings(role, index)
    for binding in manifests.bindings:
        findings += _binding_findings(binding, index)
    findings += _lint_unused_roles(manifests, index)
    return tuple(sorted(dict.fromkeys(findings), key=_position))


def _position(finding: Finding) -> tuple[str, int]:
    place = finding.problem.place
    return place.file or "", place.line or 0


# --- roles ---


def _role_findings(role: Role, index: Index) -> Iterator[Finding]:
    if role.aggregates is not None and role.rules:
        is_unchanged = index.roles[role.kind, role.namespace, role.name].rules == role.rules
        message = f"{role} is made of other roles, so that its own rules are overwritten"
        if is_unchanged:
            message = f"{role} is made of other roles, and its own rules hold only while its selectors find none"
        problem = Problem(message, role.place, "put the rules into a ClusterRole with a label that is selected")
        yield Finding(Level.WARNING, "rules-overwritten", problem)
    for rule in role.rules:
        yield from _rule_findings(rule)
    yield from _redundant_rules(role)


def _rule_findings(rule: PolicyRule) -> Iterator[Finding]:
    for resource in rule.resources:
        name, slash, subresource = resource.partition("/")
        if slash and subresource == ANY:
            message = f'"{resource}" never matches: after the slash a star stands for itself'
            hint = f'name each subresource, as in "{name}/status"'
            yield Finding(Level.ERROR, "subresource-star", Problem(message, rule.place, hint))
        # In other API groups a resource may really have this name.
        if (plural := plural_of(name)) and {"", ANY, "apps", "batch", GROUP} & set(rule.api_groups):
            message = f'"{name}" never matches: resources are named in the plural and in lower case'
            yield Finding(Level.WARNING, "singular-resource", Problem(message, rule.place, f'did you mean "{plural}"?'))
    if rule.resource_names:
        yield from _name_findings(rule)


def _name_findings(rule: PolicyRule) -> Iterator[Finding]:
    if ANY in rule.resource_names and not any(verb.startswith("impersonate") for verb in rule.verbs):
        problem = Problem('"*" in resourceNames is the name of an object', rule.place, "leave resourceNames out")
        yield Finding(Level.WARNING, "name-star", problem)
    # Creating a subresource, such as pods/exec, uses the name of the object.
    if all("/" in resource for resource in rule.resources):
        return
    never = [verb for verb in rule.verbs if verb in _NEVER_NAMED]
    if never:
        message = f"{' and '.join(never)} with resourceNames never matches: such a request names no object"
        hint = "put these verbs into a rule without resourceNames"
        level = Level.ERROR if len(never) == len(rule.verbs) else Level.WARNING
        yield Finding(level, "named-create", Problem(message, rule.place, hint))
    rarely = [verb for verb in rule.verbs if verb in _RARELY_NAMED]
    if rarely:
        message = f"{' and '.join(rarely)} with resourceNames matches only requests with one name in a fieldSelector"
        hint = "ask with --field-selector metadata.name=NAME, or put these verbs into a rule without resourceNames"
        yield Finding(Level.INFO, "named-list", Problem(message, rule.place, hint))


def _redundant_rules(role: Role) -> Iterator[Finding]:
    distinct: list[PolicyRule] = []
    for rule in role.rules:
        same = next((other for other in distinct if normalize(other) == normalize(rule)), None)
        if same is not None:
            problem = Problem(f"duplicate rule; the first is at {same.place}", rule.place, "remove it")
            yield Finding(Level.WARNING, "duplicate-rule", problem)
            continue
        distinct.append(rule)
    for rule in distinct:
        wider = next((other for other in distinct if other is not rule and covers([other], [rule])), None)
        if wider is not None:
            message = f"this rule adds nothing: the one at {wider.place} allows all of it"
            yield Finding(Level.INFO, "redundant-rule", Problem(message, rule.place, "remove one of the two"))


def _lint_unused_roles(manifests: Manifests, index: Index) -> Iterator[Finding]:
    roles_in_use = {
        (binding.role_kind, binding.namespace if binding.role_kind == ROLE else "", binding.role_name)
        for binding in index.bindings
    }
    selectors = [selector for role in index.roles.values() for selector in role.aggregates or ()]
    for role in manifests.roles:
        is_part = role.kind == CLUSTER_ROLE and any(selector.selects(role.labels) for selector in selectors)
        if (role.kind, role.namespace, role.name) not in roles_in_use and not is_part:
            problem = Problem(f"nobody has {role}: no binding refers to it", role.place, "bind it, or remove it")
            yield Finding(Level.INFO, "unused-role", problem)


# --- bindings ---


def _binding_findings(binding: Binding, index: Index) -> Iterator[Finding]:
    role = index.role_of(binding)
    if role is None:
        message = f"{binding} refers to {binding.role}, which does not exist"
        yield Finding(Level.ERROR, "dangling-role", Problem(message, binding.place, _near(binding, index)))
    if not binding.subjects:
        yield Finding(Level.INFO, "no-subjects", Problem(f"{binding} has no subjects", binding.place))
    if role is not None and any(_is_wide(rule) for rule in role.rules):
        yield from _wide_grants(binding)


def _wide_grants(binding: Binding) -> Iterator[Finding]:
    for subject in binding.subjects:
        level, who = _EVERYBODY.get((subject.kind, subject.name), (Level.INFO, ""))
        if who:
            message = f"{binding} gives {binding.role}, which has a star in it, to {describe(subject)}: {who}"
            hint = "name the groups that need it, or a role without stars"
            yield Finding(level, "wide-grant", Problem(message, binding.place, hint))


def _is_wide(rule: PolicyRule) -> bool:
    return any(ANY in values for values in (rule.verbs, rule.api_groups, rule.resources, rule.non_resource_urls))


def _near(binding: Binding, index: Index) -> str | None:
    """Hint at a role with this name of the other kind or in another namespace: likely the one that was meant."""
    for role in index.roles.values():
        if role.name == binding.role_name:
            return f"there is {role}"
    return None
