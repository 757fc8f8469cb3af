"""Generate the smallest roles and bindings that allow what was used, and find rights that were never used. Pure.

    rights of a subject  ->  rules for the whole cluster and for each namespace  ->  roles, bindings

A rule allows each of its verbs on each of its resources in each of its API groups, so resources share a rule only if
all of that was used. Rights used without a namespace need a ClusterRole, which allows them in every namespace too: RBAC
has no smaller rule for them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

from ostiary.core.policy_rules import ANY, PolicyRule, atoms, gives_more_than_discovery, resource_keys, url_matches
from ostiary_gateway.authorization.implied_groups import service_account
from ostiary_gateway.interfaces.authorization import Grant, ResourceRule, Subject
from ostiary_gateway.policy.usage import Right, SubjectUse
from ostiary_gateway.wire.rbac import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    USER,
    USER_GROUP,
    Binding,
    Role,
)

# Bound for the search for fewer rules: combinations tried.
_MOST_TRIED = 20_000
_SLUG_CHARACTERS = 32
# Long enough that users who can choose their own names cannot produce a collision with another user's roles.
_DIGEST_CHARACTERS = 16

_Names = tuple[str, ...]
_Words = tuple[str, ...]


def suggested_objects(subject: Subject, rights: Iterable[Right], *, prefix: str) -> tuple[Role | Binding, ...]:
    """Return the roles with their bindings.

    Namespaces with the same rules share a ClusterRole, bound in each of them.
    """
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
    """Return a valid object name that is unique to the subject."""
    whole = f"{subject.kind}:{subject.namespace}:{subject.name}"
    slug = re.sub(r"[^a-z0-9]+", "-", f"{subject.namespace} {subject.name}".lower())[:_SLUG_CHARACTERS].strip("-")
    digest = hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARACTERS]
    return "-".join(filter(None, (prefix, slug, digest)))


def _not_in(wide: set[tuple[str, str, str, str]], local: Iterable[Right]) -> list[Right]:
    """Return the rights that the cluster-wide ones do not include."""
    return [
        right
        for right in local
        if not {(right.verb, right.api_group, right.resource, name) for name in ("", right.name)} & wide
    ]


# --- rules ---


def smallest_rules(rights: Iterable[Right]) -> tuple[PolicyRule, ...]:
    """Return as few rules as possible that allow *rights* and nothing else."""
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
    # Group objects with the same verbs first: resources then share a list of names as a whole, or not at all.
    named: dict[tuple[str, str, _Words], list[str]] = {}
    for (group, resource, name), verbs in verbs_of.items():
        named.setdefault((group, resource, tuple(sorted(verbs))), []).append(name)
    rows: dict[tuple[str, _Names], dict[str, set[str]]] = {}
    for (group, resource, words), names in named.items():
        key = (group, tuple(sorted(filter(None, names))))
        rows.setdefault(key, {}).setdefault(resource, set()).update(words)
    # API groups with equal resources share a rule, for example when a resource moved to another group.
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
    """Return pairs of verbs and rows whose products together are exactly *rows*, as few as a short search finds.

    Rows with equal verbs share a pair. Fewer pairs suffice if several cover a row: of get+list, watch and all three,
    the last needs no pair of its own.
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
    """Return fewer sets, such that each of *distinct* is a union of some.

    Returns None if there are none, or too many to try.
    """
    if comb(len(distinct), 2) > _MOST_TRIED:
        # A single set cannot suffice, and there are already too many pairs.
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


# Unused rights. A rule with a star counts as used wherever it allowed something; `wider` reports that it allows more.


@dataclass(frozen=True, slots=True)
class UnusedRight:
    """A rule that grants `subject` rights that were not used. `whole` is the rule, `rules` its unused parts.

    `never`: no part of it was used. `wider`: the rule has a star, and only a part of what it allows was used.
    """

    subject: Subject
    namespace: str
    whole: PolicyRule
    rules: tuple[PolicyRule, ...]
    never: bool
    wider: bool = False


def unused_rights(
    use: SubjectUse, grants: Iterable[Grant], namespaces: frozenset[str] = frozenset()
) -> tuple[UnusedRight, ...]:
    """Return the rights that *grants* give the subject of *use*, by name or through its groups, but were not used.

    With *namespaces*, rules for other namespaces are omitted.
    """
    looked_at = (grant for grant in grants if not namespaces or grant.namespace in ("", ANY, *namespaces))
    return tuple(_find_unused(use, looked_at))


def _find_unused(use: SubjectUse, grants: Iterable[Grant]) -> Iterator[UnusedRight]:
    # Filter first: most grants of a large policy are for other subjects.
    for grant in dict.fromkeys(grant for grant in grants if _concerns(use, grant.subject)):
        rule = _as_policy_rule(grant)
        if not gives_more_than_discovery(rule):
            continue
        pieces = tuple(atoms(rule))
        used = [piece for piece in pieces if _is_used(piece, grant, use)]
        unused = [piece for piece in pieces if piece not in used]
        wider = any(_has_star(piece) for piece in used)
        if unused or wider:
            yield UnusedRight(grant.subject, grant.namespace, rule, _together(unused), not used, wider)


def _concerns(use: SubjectUse, subject: Subject) -> bool:
    """Report whether a grant to *subject* applies. A group gets its own grants only: its members may have others."""
    own = use.subject
    if subject.kind == USER_GROUP and own.kind != USER_GROUP:
        return subject.name in use.groups
    if subject.kind == USER and own.kind == SERVICE_ACCOUNT:
        # A policy may also name a service account as a user.
        return service_account(subject.name) == (own.namespace, own.name)
    return (subject.kind, subject.name, subject.namespace) == (own.kind, own.name, own.namespace)


def _as_policy_rule(grant: Grant) -> PolicyRule:
    rule = grant.rule
    if not isinstance(rule, ResourceRule):
        return PolicyRule(rule.verbs, non_resource_urls=rule.paths)
    return PolicyRule(rule.verbs, rule.api_groups, rule.resources, rule.resource_names)


def _is_used(piece: PolicyRule, grant: Grant, use: SubjectUse) -> bool:
    return any(_allows(piece, grant, right) for right in use.uses)


def _allows(piece: PolicyRule, grant: Grant, right: Right) -> bool:
    if piece.verbs[0] not in (ANY, right.verb):
        return False
    if right.path or piece.non_resource_urls:
        return bool(right.path) and any(url_matches(url, right.path) for url in piece.non_resource_urls)
    if grant.namespace not in ("", ANY, right.namespace) or piece.api_groups[0] not in (ANY, right.api_group):
        return False
    resource, _, subresource = right.resource.partition("/")
    covers = piece.resources[0] in resource_keys(resource, subresource)
    # Logs read without names do not show which objects were used: the rule counts as used.
    return covers and (not piece.resource_names or right.name in ("", piece.resource_names[0]))


def _has_star(piece: PolicyRule) -> bool:
    words = (*piece.verbs, *piece.api_groups, *piece.resources)
    return any(ANY in word for word in words) or any(url.endswith(ANY) for url in piece.non_resource_urls)


def _together(pieces: Iterable[PolicyRule]) -> tuple[PolicyRule, ...]:
    """Merge *pieces* into the smallest equivalent set of rules."""
    return smallest_rules(
        Right(
            piece.verbs[0],
            "",
            *(piece.api_groups or ("",)),
            *(piece.resources or ("",)),
            *(piece.resource_names or ("",)),
            *piece.non_resource_urls,
        )
        for piece in pieces
    )
