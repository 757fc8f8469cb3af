"""Intersect a list of rules with a token scope, for ``kubectl auth can-i --list`` with a scoped token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from ostiary.core.policy_rules import ANY, PolicyRule, url_matches
from ostiary.core.scopes import Delegation, Scope
from ostiary_gateway.interfaces.authorization import NonResourceRule, ResourceRule, Rules

# A longer list is truncated and marked as incomplete.
MOST_RULES = 1000
T = TypeVar("T")


def rules_within(rules: Rules, delegation: Delegation, *, namespace: str, upstream: str) -> Rules:
    """Return what both *rules* of *namespace* and *upstream* and *delegation* allow."""
    for scope in delegation.scopes:
        here = _rules_here(scope, namespace, upstream)
        resource_rules, cut = _limit_rules(_resource_rules(rules.resource_rules, here))
        non_resource_rules, also_cut = _limit_rules(_path_rules(rules.non_resource_rules, here))
        incomplete = rules.incomplete or cut or also_cut
        rules = replace(
            rules, resource_rules=resource_rules, non_resource_rules=non_resource_rules, incomplete=incomplete
        )
    return rules if delegation.scopes else Rules()


def _rules_here(scope: Scope, namespace: str, upstream: str) -> list[PolicyRule]:
    return [each for rule in scope.rules if rule.is_for(namespace, upstream) for each in rule.policy_rules()]


def _resource_rules(rules: Iterable[ResourceRule], here: Sequence[PolicyRule]) -> Iterator[ResourceRule]:
    for rule in rules:
        for own in here:
            verbs, groups = _common(rule.verbs, own.verbs), _common(rule.api_groups, own.api_groups)
            resources = _common_resources(rule.resources, own.resources)
            names = _common_names(rule.resource_names, own.resource_names)
            if verbs and groups and resources and names is not None:
                yield ResourceRule(verbs, groups, resources, names)


def _path_rules(rules: Iterable[NonResourceRule], here: Sequence[PolicyRule]) -> Iterator[NonResourceRule]:
    for rule in rules:
        for own in here:
            verbs, paths = _common(rule.verbs, own.verbs), _common_paths(rule.paths, own.non_resource_urls)
            if verbs and paths:
                yield NonResourceRule(verbs, paths)


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    if ANY in one:
        return other
    return one if ANY in other else tuple(value for value in one if value in other)


def _common_resources(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    pairs = ((first, second) for first in one for second in other)
    common = (second if _includes(first, second) else first for first, second in pairs if _meet(first, second))
    return tuple(dict.fromkeys(common))


def _meet(one: str, other: str) -> bool:
    return _includes(one, other) or _includes(other, one)


def _includes(pattern: str, resource: str) -> bool:
    return pattern in (ANY, resource) or (
        pattern.startswith(f"{ANY}/") and resource.partition("/")[2] == pattern.partition("/")[2]
    )


def _common_names(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the common names; None if there are none. An empty list means all names."""
    if not one or not other:
        return one or other
    return tuple(name for name in one if name in other) or None


def _common_paths(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    pairs = [(first, second) for first in one for second in other]
    inner = [second for first, second in pairs if url_matches(first, second)]
    return tuple(dict.fromkeys([*inner, *(first for first, second in pairs if url_matches(second, first))]))


def _limit_rules(rules: Iterator[T]) -> tuple[tuple[T, ...], bool]:
    distinct_rules = tuple(dict.fromkeys(islice(rules, MOST_RULES)))
    return distinct_rules, next(rules, None) is not None
