"""What a cluster must allow the gateway itself, and no more: its role there, made from the policy. Pure.

    constrained (Kubernetes 1.36 and later)
        whom: the verb impersonate:user-info on users, uids, and on those groups that the policy mentions
        what: the verb impersonate-on:user-info:<verb>, for each rule of the policy, in the namespace where it holds
    legacy
        whom: the verb impersonate, on the same; what such a user may do is then all that the gateway may do

Called by ``ostiary impersonation-role``. A gateway that somebody broke into can then be nobody but those whom it serves
anyway, doing what they may. It can never be ``system:masters``, whom no policy of the cluster stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ostiary.interfaces.authorization import Grant, ResourceRule, Subject
from ostiary.wire.rbac import (
    ANY,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    ROLE,
    ROLE_BINDING,
    USER_GROUP,
    Binding,
    PolicyRule,
    Role,
    as_yaml,
    is_dns_name,
)

MASTERS = "system:masters"
AUTHENTICATION = "authentication.k8s.io"
LEGACY = "impersonate"
CONSTRAINED = "impersonate:user-info"
ON = "impersonate-on:user-info:"

RESOURCE_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
PATH_VERBS = ("delete", "get", "head", "options", "patch", "post", "put")

# A role must name them: to RBAC, a star after the slash is a name.
SUBRESOURCES = (
    *("approval", "attach", "binding", "ephemeralcontainers", "eviction", "exec", "finalize", "log"),
    *("portforward", "proxy", "resize", "scale", "status", "token"),
)

# What must be allowed where the policy cannot be listed: any request, as whomever it may be at all.
ANYTHING = (
    PolicyRule(RESOURCE_VERBS, (ANY,), (ANY,)),
    PolicyRule(PATH_VERBS, non_resource_urls=(ANY,)),
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom the gateway must be able to be. No `users` means any name, since names cannot be listed beforehand.

    `extra` are the keys of extra fields that identity providers give.
    """

    groups: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


def constrained(
    identity: Identity, grants: Iterable[Grant] | None, *, name: str, subject: Subject
) -> tuple[Role | Binding, ...]:
    """The objects for a cluster with constrained impersonation. *grants* None: the policy cannot be listed."""
    everywhere, local = list[PolicyRule](), dict[str, list[PolicyRule]]()
    for namespace, rule in _wanted(grants) if grants is not None else (("", rule) for rule in ANYTHING):
        (local.setdefault(namespace, []) if namespace else everywhere).append(_on(rule))
    rules = (*_whom(CONSTRAINED, identity, users_in=AUTHENTICATION), *_shortest(everywhere))
    objects = list[Role | Binding](_bound(Role(CLUSTER_ROLE, name, rules=rules), subject))
    for namespace, found in sorted(local.items()):
        objects += _bound(Role(ROLE, name, namespace, tuple(_shortest(found))), subject)
    return tuple(objects)


def legacy(identity: Identity, *, name: str, subject: Subject) -> tuple[Role | Binding, ...]:
    """The objects for an older cluster: only whom the gateway can be is limited there."""
    rules = tuple(_whom(LEGACY, identity, users_in=""))
    return _bound(Role(CLUSTER_ROLE, name, rules=rules), subject)


def manifest(objects: Iterable[Role | Binding]) -> str:
    return "---\n".join(map(as_yaml, objects))


# --- whom ---


def _whom(verb: str, identity: Identity, *, users_in: str) -> list[PolicyRule]:
    rules = [PolicyRule((verb,), (users_in,), ("users",), identity.users)]
    groups = tuple(sorted(identity.groups - {MASTERS}))
    if groups:
        # Never a rule without names: that would be every group, the one that may do everything among them.
        rules.append(PolicyRule((verb,), (users_in,), ("groups",), groups))
    rules.append(PolicyRule((verb,), (AUTHENTICATION,), ("uids",)))
    if identity.extra:
        keys = tuple(f"userextras/{key}" for key in sorted(identity.extra))
        rules.append(PolicyRule((verb,), (AUTHENTICATION,), keys))
    return rules


# --- what ---


def _wanted(grants: Iterable[Grant]) -> Iterator[tuple[str, PolicyRule]]:
    for grant in grants:
        # They need no grant, and the gateway can be none of them.
        if (grant.subject.kind, grant.subject.name) == (USER_GROUP, MASTERS):
            continue
        rule = _requests(grant)
        namespace = "" if grant.namespace == ANY else grant.namespace
        # What is no namespace's name is a rule about nothing, and must not become one about everything.
        if rule is not None and (not namespace or is_dns_name(namespace)):
            yield namespace, rule


def _requests(grant: Grant) -> PolicyRule | None:
    """The part of a rule that requests can ask for: no request has the verb ``escalate`` or ``use``."""
    rule = grant.rule
    if not isinstance(rule, ResourceRule):
        verbs = _expanded(rule.verbs, PATH_VERBS)
        return PolicyRule(verbs, non_resource_urls=rule.paths) if verbs else None
    verbs, resources = _expanded(rule.verbs, RESOURCE_VERBS), rule.resources
    if grant.subresources and ANY not in resources:
        resources = (*resources, *(f"{one}/{below}" for one in resources for below in SUBRESOURCES))
    return PolicyRule(verbs, rule.api_groups, resources, rule.resource_names) if verbs else None


def _expanded(verbs: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    # Spelled out: the verb "*" of a rule would also be "impersonate", and so everything.
    return known if ANY in verbs else tuple(verb for verb in known if verb in verbs)


def _on(rule: PolicyRule) -> PolicyRule:
    return replace(rule, verbs=tuple(ON + verb for verb in rule.verbs))


def _shortest(rules: Iterable[PolicyRule]) -> list[PolicyRule]:
    """The same permissions in fewer rules: what is allowed under equal conditions stands together, and once."""
    resources, urls = dict[tuple[tuple[str, ...], ...], set[str]](), dict[tuple[str, ...], set[str]]()
    for rule in rules:
        if rule.non_resource_urls:
            urls.setdefault(rule.verbs, set()).update(rule.non_resource_urls)
        else:
            resources.setdefault((rule.verbs, rule.api_groups, rule.resource_names), set()).update(rule.resources)
    found = [
        PolicyRule(verbs, groups, tuple(sorted(kinds)), names)
        for (verbs, groups, names), kinds in sorted(resources.items())
    ]
    return found + [PolicyRule(verbs, non_resource_urls=tuple(sorted(paths))) for verbs, paths in sorted(urls.items())]


def _bound(role: Role, subject: Subject) -> tuple[Role, Binding]:
    kind = ROLE_BINDING if role.namespace else CLUSTER_ROLE_BINDING
    return role, Binding(kind, role.name, role.namespace, role.kind, role.name, (subject,))
