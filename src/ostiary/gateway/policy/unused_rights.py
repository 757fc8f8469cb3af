"""What a policy gives somebody who never used it. Pure.

Called by ``ostiary policy suggest``, with the grants of a policy that can list them. A rule with a star counts as used
wherever it allowed something; how much more it allows is said besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ostiary.core.rules.discovery import gives_more_than_discovery
from ostiary.core.rules.matching import atoms, resource_keys, url_matches
from ostiary.core.users.implied_groups import service_account
from ostiary.gateway.policy.suggested_role import smallest_rules
from ostiary.gateway.policy.usage import Right, SubjectUse
from ostiary.interfaces.authorization import Grant, ResourceRule, Subject
from ostiary.wire.rbac import ANY, SERVICE_ACCOUNT, USER, USER_GROUP, PolicyRule


@dataclass(frozen=True, slots=True)
class UnusedRight:
    """A rule that `subject` has, `whole`: `rules` are the parts of it that were never used.

    `never`: nothing of it was. `wider`: the rule has a star, and only a part of what it allows was used.
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
    """What the subject of *use* has by *grants*, by its own name or through its groups, and did not use.

    If only some *namespaces* were looked at, rules for others are not told.
    """
    looked_at = (grant for grant in grants if not namespaces or grant.namespace in ("", ANY, *namespaces))
    return tuple(_find_unused(use, looked_at))


def _find_unused(use: SubjectUse, grants: Iterable[Grant]) -> Iterator[UnusedRight]:
    # Most grants of a large policy are others'.
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
    """Of a group it is the group's own rules: its members have others besides."""
    own = use.subject
    if subject.kind == USER_GROUP and own.kind != USER_GROUP:
        return subject.name in use.groups
    if subject.kind == USER and own.kind == SERVICE_ACCOUNT:
        # A policy may name a service account as a user, too.
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
    # Without names in the log it is not known which objects were used: the rule counts as used.
    return covers and (not piece.resource_names or right.name in ("", piece.resource_names[0]))


def _has_star(piece: PolicyRule) -> bool:
    words = (*piece.verbs, *piece.api_groups, *piece.resources)
    return any(ANY in word for word in words) or any(url.endswith(ANY) for url in piece.non_resource_urls)


def _together(pieces: Iterable[PolicyRule]) -> tuple[PolicyRule, ...]:
    """The same in as few rules as say it."""
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
