"""Lists what the index knows: what a user may do, who may do something, and all grants. Called by the rbac provider."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ostiary.core.rules.matching import normalize
from ostiary.interfaces.authorization import Grant, NonResourceRule, ResourceRule, Rules, Subject
from ostiary.model import RequestInfo, UserInfo
from ostiary.plugins.rbac.index import MASTERS, Index, holder_of, missing_roles, with_namespace
from ostiary.plugins.rbac.lookup.compiled_role import CompiledRole
from ostiary.wire.rbac import ANY, USER_GROUP, PolicyRule

_EVERYTHING = (PolicyRule((ANY,), (ANY,), (ANY,)), PolicyRule((ANY,), non_resource_urls=(ANY,)))


def rules_for(index: Index, user: UserInfo, namespace: str) -> Rules:
    """What *user* may do in *namespace*, each rule once; what holds in the whole cluster comes first.

    Rules for paths count only where they can: a RoleBinding gives them to nobody.
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
    """Who has which rule. Rules for paths are left out where a RoleBinding gives them: they mean nothing there."""
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
    """Everyone who may do this, once for each binding that says so. First ``system:masters``, whom nothing stops."""
    masters = Subject(USER_GROUP, MASTERS, via="may do everything, without any binding")
    return (masters, *dict.fromkeys(_who_can(index, request)))


def _who_can(index: Index, request: RequestInfo) -> Iterator[Subject]:
    # The bindings of the cluster before those of the namespace, as decisions are made.
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
