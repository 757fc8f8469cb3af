"""The default roles and bindings of a cluster, as far as they matter in front of one.

An object of the same kind and name in the files replaces the default. The user-facing roles (view, edit, admin) are
aggregated by label, so a policy extends them by giving its own ClusterRole one of the aggregation labels.
"""

from __future__ import annotations

from ostiary.core.policy_rules import ANY, DISCOVERY_PATHS, PolicyRule
from ostiary.model import Requirement
from ostiary_gateway.authorization.implied_groups import AUTHENTICATED, UNAUTHENTICATED
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.providers.rbac.index import MASTERS
from ostiary_gateway.wire.rbac import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    GROUP,
    USER_GROUP,
    Binding,
    LabelSelector,
    Role,
)

AGGREGATE_TO = f"{GROUP}/aggregate-to-"
MONITORING = "system:monitoring"

_READ = ("get", "list", "watch")
_WRITE = ("create", "delete", "deletecollection", "patch", "update")


def _rule(verbs: tuple[str, ...], groups: str | tuple[str, ...], *resources: str) -> PolicyRule:
    """A rule with sorted verbs and resources, as in a cluster: ``kubectl auth can-i --list`` prints this order."""
    groups = (groups,) if isinstance(groups, str) else groups
    return PolicyRule(tuple(sorted(verbs)), groups, tuple(sorted(resources)))


def _urls(*urls: str) -> PolicyRule:
    return PolicyRule(("get",), non_resource_urls=tuple(sorted(urls)))


def _role(name: str, *rules: PolicyRule, part_of: str = "") -> Role:
    labels = ((AGGREGATE_TO + part_of, "true"),) if part_of else ()
    return Role(CLUSTER_ROLE, name, rules=rules, labels=labels)


def _sum(name: str, part_of: str = "") -> Role:
    """A role that aggregates all roles with its label, and that may itself be aggregated."""
    selector = LabelSelector((Requirement(AGGREGATE_TO + name, "In", ("true",)),))
    labels = ((AGGREGATE_TO + part_of, "true"),) if part_of else ()
    return Role(CLUSTER_ROLE, name, labels=labels, aggregates=(selector,))


def _with_status(*resources: str) -> tuple[str, ...]:
    return tuple(name for resource in resources for name in (resource, f"{resource}/status"))


_PUBLIC = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_PROBES = ("/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/slis", "/readyz", "/readyz/*")
_WORKLOADS = ("daemonsets", "deployments", "replicasets", "statefulsets")
_SCALES = ("deployments/scale", "replicasets/scale", "statefulsets/scale")
_STREAMS = ("pods/attach", "pods/exec", "pods/portforward", "pods/proxy")
_STORED = ("configmaps", "persistentvolumeclaims", "replicationcontrollers", "replicationcontrollers/scale")
_EVENTS = ("", "events.k8s.io")
# The former API group of workloads and ingresses. The roles of a cluster still name it.
_OLD = (*_WORKLOADS[:3], *_SCALES[:2], "ingresses", "networkpolicies", "replicationcontrollers/scale")
_OLD_STATUS = ("daemonsets/status", "deployments/status", "ingresses/status", "replicasets/status")

_VIEW = (
    _rule(
        _READ,
        "",
        *_STORED,
        "endpoints",
        "persistentvolumeclaims/status",
        "pods",
        "serviceaccounts",
        *_with_status("services"),
    ),
    _rule(
        _READ,
        "",
        *("bindings", "limitranges", "namespaces/status", "pods/log", "pods/status"),
        *("replicationcontrollers/status", *_with_status("resourcequotas")),
    ),
    _rule(_READ, "", "namespaces"),
    _rule(_READ, _EVENTS, "events"),
    _rule(_READ, "discovery.k8s.io", "endpointslices"),
    _rule(_READ, "apps", "controllerrevisions", *_with_status(*_WORKLOADS), *_SCALES),
    _rule(_READ, "autoscaling", *_with_status("horizontalpodautoscalers")),
    _rule(_READ, "batch", *_with_status("cronjobs", "jobs")),
    _rule(_READ, "extensions", *_OLD, *_OLD_STATUS),
    _rule(_READ, "policy", *_with_status("poddisruptionbudgets")),
    _rule(_READ, "networking.k8s.io", *_with_status("ingresses"), "networkpolicies"),
    _rule(_READ, "resource.k8s.io", *_with_status("resourceclaims"), "resourceclaimtemplates"),
)
_EDIT = (
    _rule(_READ, "", "secrets", "services/proxy", *_STREAMS),
    _rule(("impersonate",), "", "serviceaccounts"),
    _rule(_WRITE, "", "pods", *_STREAMS),
    _rule(("create",), "", "pods/eviction"),
    _rule(_WRITE, "", *_STORED, "secrets", "serviceaccounts", "services", "services/proxy"),
    _rule(("create",), "", "serviceaccounts/token"),
    _rule(_WRITE, _EVENTS, "events"),
    _rule(_WRITE, "apps", *_WORKLOADS, "deployments/rollback", *_SCALES),
    _rule(_WRITE, "autoscaling", "horizontalpodautoscalers"),
    _rule(_WRITE, "batch", "cronjobs", "jobs"),
    _rule(_WRITE, "extensions", *_OLD, "deployments/rollback"),
    _rule(_WRITE, "policy", "poddisruptionbudgets"),
    _rule(_WRITE, "networking.k8s.io", "ingresses", "networkpolicies"),
    _rule((*_READ, *_WRITE), "coordination.k8s.io", "leases"),
    _rule(_WRITE, "resource.k8s.io", "resourceclaims", "resourceclaimtemplates"),
)
_ADMIN = (
    _rule(("create",), "authorization.k8s.io", "localsubjectaccessreviews"),
    _rule((*_READ, *_WRITE), GROUP, "rolebindings", "roles"),
)

DEFAULT_ROLES = (
    _role("cluster-admin", _rule((ANY,), ANY, ANY), PolicyRule((ANY,), non_resource_urls=(ANY,))),
    _role(
        "system:basic-user",
        _rule(("create",), "authorization.k8s.io", "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
        _rule(("create",), "authentication.k8s.io", "selfsubjectreviews"),
    ),
    _role(
        "system:discovery",
        _urls(*DISCOVERY_PATHS),
    ),
    _role("system:public-info-viewer", _urls(*_PUBLIC)),
    _role(
        MONITORING,
        _urls(*_PROBES, "/flagz", "/statusz"),
        _rule(("get",), "", "nodes/metrics"),
    ),
    _sum("admin"),
    _sum("edit", part_of="admin"),
    _sum("view", part_of="edit"),
    _role("system:aggregate-to-admin", *_ADMIN, part_of="admin"),
    _role("system:aggregate-to-edit", *_EDIT, part_of="edit"),
    _role("system:aggregate-to-view", *_VIEW, part_of="view"),
)


def _binding(name: str, *groups: str) -> Binding:
    subjects = tuple(Subject(USER_GROUP, group) for group in groups)
    return Binding(CLUSTER_ROLE_BINDING, name, role_name=name, subjects=subjects)


DEFAULT_BINDINGS = (
    _binding("cluster-admin", MASTERS),
    _binding("system:basic-user", AUTHENTICATED),
    _binding("system:discovery", AUTHENTICATED),
    _binding("system:public-info-viewer", AUTHENTICATED, UNAUTHENTICATED),
    _binding(MONITORING, MONITORING),
)
