"""Generate the least-privilege role that the gateway needs in a cluster, from the policy. Pure.

    constrained (Kubernetes 1.36 and later)
        whom: the verb impersonate:user-info on users, uids, and on those groups that the policy mentions
        what: the verb impersonate-on:user-info:<verb>, for each rule of the policy, in the namespace where it holds
        service accounts and nodes have modes of their own there (KEP-5284), and are included only on request
    legacy
        whom: the verb impersonate, on the same; what such a user may do is then all that the gateway may do

A compromised gateway can then act only as the users it serves, and do only what they may. It can never be
``system:masters``, which no policy of the cluster restricts, nor a part of the control plane: users are named, and
system names appear only as requested service accounts and nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ostiary.core.policy_rules import ANY, PolicyRule
from ostiary_gateway.authorization.implied_groups import AUTHENTICATED, service_account_groups
from ostiary_gateway.interfaces.authorization import Grant, ResourceRule, Subject
from ostiary_gateway.sessions.authentication_context import KEYS
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
    as_yaml,
    is_dns_name,
)

SYSTEM = "system:"
MASTERS = "system:masters"
NODES = "system:nodes"
AUTHENTICATION = "authentication.k8s.io"
LEGACY = "impersonate"
# The modes of constrained impersonation. Each has a verb for the user and a prefix for the verbs allowed as that user.
USER_INFO, AS_SERVICE_ACCOUNT, AS_NODE = "user-info", "serviceaccount", "arbitrary-node"

RESOURCE_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
PATH_VERBS = ("delete", "get", "head", "options", "patch", "post", "put")

# What the gateway does under its own identity to compare decisions with the cluster's (`upstreams[].shadow`).
ASKS_DECISIONS = PolicyRule(("create",), ("authorization.k8s.io",), ("subjectaccessreviews",))

# Fallback if the policy cannot be listed: any request, for every user that the gateway may impersonate.
ANYTHING = (
    PolicyRule(RESOURCE_VERBS, (ANY,), (ANY,)),
    PolicyRule(PATH_VERBS, non_resource_urls=(ANY,)),
)

_RulesByNamespace = Iterable[tuple[str, PolicyRule]]


@dataclass(frozen=True, slots=True)
class ImpersonationTargets:
    """Whom the gateway must be able to impersonate.

    `users` are names; with `any_user` the names are not known in advance, and the role is unbounded. `uids` and `extra`
    are further attributes that identity providers set. `service_accounts` (namespace and name; ``*`` for all of a
    namespace) and `nodes` are for ``kubectl --as``; they do not sign in at the gateway, unless `accounts_sign_in`.
    """

    groups: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    uids: bool = False
    any_user: bool = False
    service_accounts: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()
    accounts_sign_in: bool = False

    def can_be(self, subject: Subject) -> bool:
        """Report whether a user who signs in at the gateway can be *subject*."""
        if _is_system(subject.name):
            return (subject.kind, subject.name) == (USER_GROUP, AUTHENTICATED)
        if subject.kind == USER_GROUP:
            return subject.name in self.groups
        return subject.kind == USER and (self.any_user or subject.name in self.users)


def constrained_role(
    identity: ImpersonationTargets,
    grants: Iterable[Grant] | None,
    *,
    name: str,
    subject: Subject,
    own: Sequence[PolicyRule] = (),
) -> tuple[Role | Binding, ...]:
    """Return the objects for a cluster with constrained impersonation.

    *grants* is None if the policy cannot be listed. *own* is what the gateway does there under its own identity.
    """
    listed = None if grants is None else tuple(grants)
    rules: list[tuple[str, PolicyRule]] = [("", rule) for rule in _whom(f"impersonate:{USER_INFO}", identity)]
    rules += [("", rule) for rule in own]
    rules += _on(USER_INFO, _granted_rules(listed, identity.can_be))
    for namespace, account in identity.service_accounts:
        rules.append((namespace, _account_rule(f"impersonate:{AS_SERVICE_ACCOUNT}", AUTHENTICATION, account)))
        rules += _on(AS_SERVICE_ACCOUNT, _granted_rules(listed, _is_account(namespace, account)))
        if identity.accounts_sign_in:
            rules.append((namespace, _account_rule(LEGACY, "", account)))
    if identity.accounts_sign_in and identity.service_accounts:
        # Constrained impersonation of a service account takes a name and nothing else. One that signs in here also has
        # a uid and the pod of its token, for which an API server checks the older verb.
        besides = ImpersonationTargets(uids=identity.uids, extra=identity.extra)
        rules += [("", rule) for rule in _whom(LEGACY, besides)]
    for node in identity.nodes:
        rules.append(("", PolicyRule((f"impersonate:{AS_NODE}",), (AUTHENTICATION,), ("nodes",), (node,))))
        rules += _on(AS_NODE, _granted_rules(listed, _is_node(node)))
    return _objects(rules, name=name, subject=subject)


def legacy_role(
    identity: ImpersonationTargets, *, name: str, subject: Subject, own: Sequence[PolicyRule] = ()
) -> tuple[Role | Binding, ...]:
    """Return the objects for an older cluster, which can only limit whom the gateway impersonates."""
    nodes = tuple(f"{SYSTEM}node:{node}" for node in identity.nodes)
    rules = [("", rule) for rule in (*_whom(LEGACY, identity, users_in=""), *own)]
    if nodes:
        rules.append(("", PolicyRule((LEGACY,), ("",), ("users",), nodes)))
    rules += [(namespace, _account_rule(LEGACY, "", account)) for namespace, account in identity.service_accounts]
    return _objects(rules, name=name, subject=subject)


def reading_role(rules: Iterable[PolicyRule], *, name: str, subject: Subject) -> tuple[Role | Binding, ...]:
    """Return the objects for what the gateway does under its own identity, if its users are not known."""
    return _objects([("", rule) for rule in rules], name=name, subject=subject)


def manifest(objects: Iterable[Role | Binding]) -> str:
    return "---\n".join(map(as_yaml, objects))


def unbounded_rules(objects: Iterable[Role | Binding]) -> tuple[str, ...]:
    """Return a sentence for each unbounded rule of these roles, as a warning to the operator."""
    rules = ((role, rule) for role in objects if isinstance(role, Role) for rule in role.rules)
    return tuple(dict.fromkeys(text for role, rule in rules if (text := _unbounded_sentence(role, rule))))


def _unbounded_sentence(role: Role, rule: PolicyRule) -> str:
    where = f' in namespace "{role.namespace}"' if role.namespace else ""
    if rule.verbs[0].startswith("impersonate-on:"):
        paths = ANY in rule.non_resource_urls
        if ANY not in rule.resources and not paths:
            return ""
        return f"the gateway may act on {'any path' if paths else f'any resource{where}'}: some rule of the policy does"
    if rule.resource_names or not rule.verbs[0].startswith(LEGACY):
        return ""
    what = {
        "users": "can be any user, also one of the control plane such as system:kube-controller-manager",
        "uids": "can claim any uid",
        "serviceaccounts": f"can be any service account{where}{_of_controllers(role.namespace)}",
    }
    extras = ", ".join(f'"{kind.partition("/")[2]}"' for kind in rule.resources if kind.startswith("userextras/"))
    ability = f"can claim any value of the extra field {extras}" if extras else what.get(rule.resources[0], "")
    return f"the gateway {ability}: the rule for {', '.join(rule.resources)} has no resourceNames"


def _of_controllers(namespace: str) -> str:
    return ", also the controllers of the control plane" if namespace == "kube-system" else ""


# --- whom to impersonate ---


def _whom(verb: str, identity: ImpersonationTargets, *, users_in: str = AUTHENTICATION) -> list[PolicyRule]:
    rules = []
    # No rule without names unless requested: it would allow every user, or every group.
    users = tuple(sorted({user for user in identity.users if not _is_system(user)}))
    if identity.any_user or users:
        rules.append(PolicyRule((verb,), (users_in,), ("users",), () if identity.any_user else users))
    groups = tuple(sorted(group for group in identity.groups if not _is_system(group)))
    if groups:
        rules.append(PolicyRule((verb,), (users_in,), ("groups",), groups))
    if identity.uids:
        rules.append(PolicyRule((verb,), (AUTHENTICATION,), ("uids",)))
    # The gateway does not forward how a user signed in.
    extra = sorted(set(identity.extra) - set(KEYS))
    if extra:
        keys = tuple(f"userextras/{key}" for key in extra)
        rules.append(PolicyRule((verb,), (AUTHENTICATION,), keys))
    return rules


def _account_rule(verb: str, group: str, account: str) -> PolicyRule:
    return PolicyRule((verb,), (group,), ("serviceaccounts",), () if account == ANY else (account,))


def _is_account(namespace: str, account: str) -> Callable[[Subject], bool]:
    groups = {*service_account_groups(namespace), AUTHENTICATED}
    prefix = f"{SYSTEM}serviceaccount:{namespace}:"

    def matches(subject: Subject) -> bool:
        if subject.kind == USER_GROUP:
            return subject.name in groups
        # A policy may also name a service account as a user.
        is_here = subject.namespace == namespace if subject.kind == SERVICE_ACCOUNT else subject.name.startswith(prefix)
        return is_here and account in (ANY, subject.name.removeprefix(prefix))

    return matches


def _is_node(node: str) -> Callable[[Subject], bool]:
    subjects = {(USER, f"{SYSTEM}node:{node}"), (USER_GROUP, NODES), (USER_GROUP, AUTHENTICATED)}
    return lambda subject: (subject.kind, subject.name) in subjects


def _is_system(name: str) -> bool:
    return name.startswith(SYSTEM)


# --- what is allowed ---


def _granted_rules(grants: Iterable[Grant] | None, matches: Callable[[Subject], bool]) -> _RulesByNamespace:
    """Yield the rules that the policy grants to matching subjects, each with its namespace."""
    if grants is None:
        yield from (("", rule) for rule in ANYTHING)
        return
    for grant in grants:
        if not matches(grant.subject):
            continue
        rule = _requests(grant)
        namespace = "" if grant.namespace == ANY else grant.namespace
        # A rule for an invalid namespace matches nothing, and must not become a rule for all namespaces.
        if rule is not None and (not namespace or is_dns_name(namespace)):
            yield namespace, rule


def _requests(grant: Grant) -> PolicyRule | None:
    """Return the part of a rule that requests can match: no request has the verb ``escalate`` or ``use``."""
    rule = grant.rule
    if not isinstance(rule, ResourceRule):
        verbs = _expand_verbs(rule.verbs, PATH_VERBS)
        return PolicyRule(verbs, non_resource_urls=rule.paths) if verbs else None
    verbs = _expand_verbs(rule.verbs, RESOURCE_VERBS)
    return PolicyRule(verbs, rule.api_groups, rule.resources, rule.resource_names) if verbs else None


def _expand_verbs(verbs: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    # Enumerate the verbs: "*" would include "impersonate", and thereby everything.
    return known if ANY in verbs else tuple(verb for verb in known if verb in verbs)


def _on(mode: str, rules: _RulesByNamespace) -> Iterator[tuple[str, PolicyRule]]:
    for namespace, rule in rules:
        yield namespace, replace(rule, verbs=tuple(f"impersonate-on:{mode}:{verb}" for verb in rule.verbs))


# --- objects ---


def _objects(
    rules_by_namespace: Iterable[tuple[str, PolicyRule]], *, name: str, subject: Subject
) -> tuple[Role | Binding, ...]:
    everywhere, local = list[PolicyRule](), dict[str, list[PolicyRule]]()
    for namespace, rule in rules_by_namespace:
        (local.setdefault(namespace, []) if namespace else everywhere).append(rule)
    objects = list[Role | Binding](
        _role_with_binding(Role(CLUSTER_ROLE, name, rules=tuple(_shortest(everywhere))), subject)
    )
    for namespace, rules in sorted(local.items()):
        objects += _role_with_binding(Role(ROLE, name, namespace, tuple(_shortest(rules))), subject)
    return tuple(objects)


def _shortest(rules: Iterable[PolicyRule]) -> list[PolicyRule]:
    """Merge rules: the same permissions in fewer rules, without duplicates.

    The rules about whom to impersonate come first, one for each kind, so that a reader sees them.
    """
    whom = list[PolicyRule]()
    resources, urls = dict[tuple[tuple[str, ...], ...], set[str]](), dict[tuple[str, ...], set[str]]()
    for rule in rules:
        if not rule.verbs[0].startswith("impersonate-on:"):
            whom.append(rule)
        elif rule.non_resource_urls:
            urls.setdefault(rule.verbs, set()).update(rule.non_resource_urls)
        else:
            resources.setdefault((rule.verbs, rule.api_groups, rule.resource_names), set()).update(rule.resources)
    what = [
        PolicyRule(verbs, groups, tuple(sorted(kinds)), names)
        for (verbs, groups, names), kinds in sorted(resources.items())
    ]
    paths = [
        PolicyRule(verbs, non_resource_urls=tuple(sorted(paths_of_verbs)))
        for verbs, paths_of_verbs in sorted(urls.items())
    ]
    return [*dict.fromkeys(whom), *what, *paths]


def _role_with_binding(role: Role, subject: Subject) -> tuple[Role, Binding]:
    kind = ROLE_BINDING if role.namespace else CLUSTER_ROLE_BINDING
    return role, Binding(kind, role.name, role.namespace, role.kind, role.name, (subject,))
