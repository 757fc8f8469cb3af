"""Determine which namespaces a user may know of, so that a denial there is a 403 and not a 404.

A user without any permission in a namespace gets a response as if the namespace did not exist (404).
"""

from __future__ import annotations

from collections.abc import Iterable

from ostiary.core.policy_rules import ANY, PolicyRule
from ostiary.model import RequestInfo
from ostiary_gateway.wire.rbac import GROUP

NAMESPACES, CREATE = "namespaces", "create"

_CLUSTER_SCOPED: dict[str, frozenset[str]] = {
    "": frozenset(("componentstatuses", "groups", "nodes", "persistentvolumes", "users")),
    "admissionregistration.k8s.io": frozenset(
        (
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "mutatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "validatingwebhookconfigurations",
        )
    ),
    "apiextensions.k8s.io": frozenset(("customresourcedefinitions",)),
    "apiregistration.k8s.io": frozenset(("apiservices",)),
    "authentication.k8s.io": frozenset(("selfsubjectreviews", "tokenreviews", "uids", "userextras")),
    "authorization.k8s.io": frozenset(("selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews")),
    "certificates.k8s.io": frozenset(("certificatesigningrequests", "clustertrustbundles", "signers")),
    "flowcontrol.apiserver.k8s.io": frozenset(("flowschemas", "prioritylevelconfigurations")),
    "metrics.k8s.io": frozenset(("nodes",)),
    "networking.k8s.io": frozenset(("ingressclasses", "ipaddresses", "servicecidrs")),
    "node.k8s.io": frozenset(("runtimeclasses",)),
    "ostiary.dev": frozenset(("decisions", "revocations", "sessions", "subjectsearches")),
    "policy": frozenset(("podsecuritypolicies",)),
    GROUP: frozenset(("clusterrolebindings", "clusterroles")),
    "resource.k8s.io": frozenset(("deviceclasses", "devicetaintrules", "resourceslices")),
    "scheduling.k8s.io": frozenset(("priorityclasses",)),
    "storage.k8s.io": frozenset(("csidrivers", "csinodes", "storageclasses", "volumeattachments")),
}
_CLUSTER_SCOPED_ANYWHERE = frozenset().union(*_CLUSTER_SCOPED.values())


def namespace_of(request: RequestInfo) -> str:
    """Return the namespace of a request, if any. For a request to a Namespace object it is that namespace."""
    if not request.is_resource:
        return ""
    if request.namespace or request.resource != NAMESPACES or request.api_group:
        return request.namespace
    return request.name


def presence(rules: Iterable[PolicyRule]) -> frozenset[str]:
    """Return the namespaces that *rules* reveal to their user; ``*`` stands for all of them.

    What counts is a rule that could allow some request inside the namespace, wherever it was granted:

    - rules for namespaced resources, and every rule with a star for the resource;
    - rules for unknown resources: they may be namespaced, and then the user knows the namespace;
    - rules for `namespaces` themselves, except to create them: a user who may read or list namespaces knows that they
      exist. With resourceNames they count for the named namespaces.

    Rules for paths do not count, nor those for cluster-scoped resources: nodes, persistent volumes, and the
    self-reviews that every user may create (``system:basic-user``).
    """
    return frozenset().union(*(_presence_of(rule) for rule in rules))


def _presence_of(rule: PolicyRule) -> frozenset[str]:
    namespaces: set[str] = set()
    for resource in rule.resources:
        name, slash, subresource = resource.partition("/")
        if name == NAMESPACES and ("" in rule.api_groups or ANY in rule.api_groups):
            if slash or any(verb != CREATE for verb in rule.verbs):
                namespaces.update(rule.resource_names or (ANY,))
        elif not (slash and subresource == ANY) and any(_may_be_namespaced(group, name) for group in rule.api_groups):
            namespaces.add(ANY)
    return frozenset(namespaces)


def _may_be_namespaced(group: str, resource: str) -> bool:
    if group == ANY:
        return resource not in _CLUSTER_SCOPED_ANYWHERE
    return resource not in _CLUSTER_SCOPED.get(group, ())
