"""The smallest roles and bindings that allow what was used, and nothing else. Pure.

    rights of a subject  ->  rules for the whole cluster and for each namespace  ->  roles, bindings

Called by ``ostiary policy suggest``. A rule allows every one of its verbs on every one of its resources in every one of
its API groups, so resources stand together only where all of that was used. What was used without a namespace needs a
ClusterRole, which allows it in every namespace, too: RBAC has no smaller rule for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from math import comb

from ostiary.gateway.policy.usage import Right
from ostiary.interfaces.authorization import Subject
from ostiary.wire.rbac import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    ROLE,
    ROLE_BINDING,
    Binding,
    PolicyRule,
    Role,
)

# How many sets of rules are tried in the search for fewer of them.
_MOST_TRIED = 20_000
_SLUG_CHARACTERS = 32
# Who can choose their own name must not be able to choose one whose roles are named like somebody else's.
_DIGEST_CHARACTERS = 16

_Names = tuple[str, ...]
_Words = tuple[str, ...]


def suggested_objects(subject: Subject, rights: Iterable[Right], *, prefix: str) -> tuple[Role | Binding, ...]:
    """The roles with their bindings. Namespaces with the same rules share a ClusterRole, bound in each of them."""
    by_namespace: dict[str, set[Right]] = {}
    for right in rights:
        by_namespace.setdefault(right.namespace, set()).add(right)
    everywhere = by_namespace.pop("", set())
    wide = {(right.verb, right.api_group, right.resource, right.name) for right in everywhere}
    rules = {namespace: smallest_rules(_not_in(wide, local)) for namespace, local in sorted(by_namespace.items())}
    name = object_name(prefix, subject)
    objects = list[Role | Binding]()
    if everywhere:
        objects.append(Role(CLUSTER_ROLE, name, rules=smallest_rules(everywhere)))
        objects.append(Binding(CLUSTER_ROLE_BINDING, name, "", CLUSTER_ROLE, name, (subject,)))
    by_rules: dict[tuple[PolicyRule, ...], list[str]] = {}
    for namespace, local_rules in rules.items():
        if local_rules:
            by_rules.setdefault(local_rules, []).append(namespace)
    for number, (shared_rules, namespaces) in enumerate(by_rules.items(), 1):
        objects += _local_objects(f"{name}-{number}", shared_rules, namespaces, subject)
    return tuple(objects)


def _local_objects(
    name: str, rules: tuple[PolicyRule, ...], namespaces: list[str], subject: Subject
) -> Iterator[Role | Binding]:
    if len(namespaces) == 1:
        yield Role(ROLE, name, namespaces[0], rules)
        yield Binding(ROLE_BINDING, name, namespaces[0], ROLE, name, (subject,))
        return
    yield Role(CLUSTER_ROLE, name, rules=rules)
    for namespace in namespaces:
        yield Binding(ROLE_BINDING, name, namespace, CLUSTER_ROLE, name, (subject,))


def object_name(prefix: str, subject: Subject) -> str:
    """A name that a cluster accepts, whatever the subject is called, and that no other subject has."""
    whole = f"{subject.kind}:{subject.namespace}:{subject.name}"
    slug = re.sub(r"[^a-z0-9]+", "-", f"{subject.namespace} {subject.name}".lower())[:_SLUG_CHARACTERS].strip("-")
    digest = hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARACTERS]
    return "-".join(filter(None, (prefix, slug, digest)))


def _not_in(wide: set[tuple[str, str, str, str]], local: Iterable[Right]) -> list[Right]:
    """Without what is allowed in the whole cluster anyway."""
    return [
        right
        for right in local
        if not {(right.verb, right.api_group, right.resource, name) for name in ("", right.name)} & wide
    ]


# --- rules ---


def smallest_rules(rights: Iterable[Right]) -> tuple[PolicyRule, ...]:
    """As few rules as allow *rights* and nothing else."""
    every = set(rights)
    unnamed = {(right.verb, right.api_group, right.resource) for right in every if not right.name}
    paths, verbs_of = dict[str, set[str]](), dict[tuple[str, str, str], set[str]]()
    for right in every:
        if right.path:
            paths.setdefault(right.path, set()).add(right.verb)
        elif not right.name or (right.verb, right.api_group, right.resource) not in unnamed:
            verbs_of.setdefault((right.api_group, right.resource, right.name), set()).add(right.verb)
    return (*_resource_rules(verbs_of), *_path_rules(paths))


def _resource_rules(verbs_of: dict[tuple[str, str, str], set[str]]) -> list[PolicyRule]:
    # Objects with the same verbs stand together first: a list of names is then a unit that resources share or not.
    named: dict[tuple[str, str, _Words], list[str]] = {}
    for (group, resource, name), verbs in verbs_of.items():
        named.setdefault((group, resource, tuple(sorted(verbs))), []).append(name)
    rows: dict[tuple[str, _Names], dict[str, set[str]]] = {}
    for (group, resource, words), names in named.items():
        key = (group, tuple(sorted(filter(None, names))))
        rows.setdefault(key, {}).setdefault(resource, set()).update(words)
    # Groups with equal resources, as when one moved from one group to another, share a rule.
    groups_of: dict[tuple[_Words, _Words, _Names], list[str]] = {}
    for (group, object_names), by_resource in sorted(rows.items()):
        for shared_verbs, resources in fewest_products(by_resource):
            groups_of.setdefault((shared_verbs, resources, object_names), []).append(group)
    return [
        PolicyRule(verbs, tuple(sorted(groups)), resources, object_names)
        for (verbs, resources, object_names), groups in sorted(groups_of.items(), key=lambda item: (item[1], item[0]))
    ]


def _path_rules(paths: dict[str, set[str]]) -> list[PolicyRule]:
    return [PolicyRule(verbs, non_resource_urls=urls) for verbs, urls in sorted(fewest_products(paths))]


def fewest_products(rows: dict[str, set[str]]) -> list[tuple[_Words, _Words]]:
    """Pairs of verbs and rows whose products are together exactly *rows*; as few of them as a short search finds.

    Rows with equal verbs share one. It can take fewer if rows are covered by several: of get+list, watch and all three,
    the last needs none of its own.
    """
    alike: dict[frozenset[str], list[str]] = {}
    for row, verbs in rows.items():
        alike.setdefault(frozenset(verbs), []).append(row)
    distinct = sorted(alike, key=lambda verbs: (len(verbs), sorted(verbs)))
    fewer = _fewer(distinct)
    if fewer is not None:
        alike = {part: [row for row, verbs in rows.items() if part <= verbs] for part in fewer}
    return [(tuple(sorted(verbs)), tuple(sorted(alike[verbs]))) for verbs in fewer or distinct]


def _fewer(distinct: list[frozenset[str]]) -> list[frozenset[str]] | None:
    """Fewer sets of which each of *distinct* is a union; None if there are none, or too many to try."""
    if comb(len(distinct), 2) > _MOST_TRIED:
        # No single set will do, and the pairs alone are too many.
        return None
    parts = set(distinct)
    for first, second in combinations(distinct, 2):
        parts.add(first & second)
    parts.discard(frozenset())
    candidates = sorted(parts, key=lambda verbs: (-len(verbs), sorted(verbs)))
    tried = 0
    for count in range(1, len(distinct)):
        tried += comb(len(candidates), count)
        if tried > _MOST_TRIED:
            return None
        for chosen in combinations(candidates, count):
            if all(frozenset[str]().union(*(part for part in chosen if part <= whole)) == whole for whole in distinct):
                return list(chosen)
    return None
