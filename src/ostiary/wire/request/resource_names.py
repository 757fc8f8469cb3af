"""The names of Kubernetes' own resources, as far as people write them differently: in the singular, or short.

Policies and reviews know the plural in lower case only, so ``pod``, ``po`` and ``Pods`` are names that match nothing.
kubectl asks the cluster which resource is meant; nobody can be asked where a policy is looked at.
"""

from __future__ import annotations

# Those of Kubernetes' own resources. A role must name them: to RBAC, a star after the slash is a name.
SUBRESOURCES = (
    *("approval", "attach", "binding", "ephemeralcontainers", "eviction", "exec", "finalize", "log"),
    *("portforward", "proxy", "resize", "scale", "status", "token"),
)
_SHORT = {
    "cm": "configmaps",
    "cj": "cronjobs",
    "crd": "customresourcedefinitions",
    "csr": "certificatesigningrequests",
    "deploy": "deployments",
    "ds": "daemonsets",
    "ep": "endpoints",
    "ev": "events",
    "hpa": "horizontalpodautoscalers",
    "ing": "ingresses",
    "limits": "limitranges",
    "netpol": "networkpolicies",
    "no": "nodes",
    "ns": "namespaces",
    "pc": "priorityclasses",
    "pdb": "poddisruptionbudgets",
    "po": "pods",
    "pv": "persistentvolumes",
    "pvc": "persistentvolumeclaims",
    "quota": "resourcequotas",
    "rc": "replicationcontrollers",
    "rs": "replicasets",
    "sa": "serviceaccounts",
    "sc": "storageclasses",
    "sts": "statefulsets",
    "svc": "services",
}
_PLURALS = frozenset(
    (
        *_SHORT.values(),
        *("apiservices", "bindings", "clusterrolebindings", "clusterroles", "controllerrevisions", "csidrivers"),
        *("csinodes", "endpointslices", "flowschemas", "groups", "ingressclasses", "jobs", "leases"),
        *("localsubjectaccessreviews", "mutatingwebhookconfigurations", "podtemplates"),
        *("prioritylevelconfigurations", "resourceclaims", "resourceclaimtemplates", "rolebindings", "roles"),
        *("runtimeclasses", "secrets", "selfsubjectaccessreviews", "selfsubjectreviews", "selfsubjectrulesreviews"),
        *("subjectaccessreviews", "tokenreviews", "users", "validatingwebhookconfigurations", "volumeattachments"),
        *("decisions", "revocations", "sessions", "subjectsearches"),
    )
)

# Of the resources that are not in the core group; events and those of every group are left out.
_GROUPS = {
    **dict.fromkeys(("controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"), "apps"),
    **dict.fromkeys(("cronjobs", "jobs"), "batch"),
    **dict.fromkeys(("ingressclasses", "ingresses", "networkpolicies"), "networking.k8s.io"),
    **dict.fromkeys(("clusterrolebindings", "clusterroles", "rolebindings", "roles"), "rbac.authorization.k8s.io"),
    **dict.fromkeys(("csidrivers", "csinodes", "storageclasses", "volumeattachments"), "storage.k8s.io"),
    **dict.fromkeys(
        ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"), "admissionregistration.k8s.io"
    ),
    **dict.fromkeys(("flowschemas", "prioritylevelconfigurations"), "flowcontrol.apiserver.k8s.io"),
    **dict.fromkeys(("resourceclaims", "resourceclaimtemplates"), "resource.k8s.io"),
    **dict.fromkeys(("selfsubjectreviews", "tokenreviews"), "authentication.k8s.io"),
    **dict.fromkeys(
        (
            *("localsubjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
            "subjectaccessreviews",
        ),
        "authorization.k8s.io",
    ),
    "apiservices": "apiregistration.k8s.io",
    "certificatesigningrequests": "certificates.k8s.io",
    "customresourcedefinitions": "apiextensions.k8s.io",
    "endpointslices": "discovery.k8s.io",
    "horizontalpodautoscalers": "autoscaling",
    "leases": "coordination.k8s.io",
    "poddisruptionbudgets": "policy",
    "priorityclasses": "scheduling.k8s.io",
    "runtimeclasses": "node.k8s.io",
}


def group_of(plural: str) -> str | None:
    """The API group of one of Kubernetes' own resources; None for the core group, and if nothing is known of it."""
    return _GROUPS.get(plural)


def plural_of(name: str) -> str | None:
    """What was likely meant by *name*, which is no resource's name as it stands; None if nothing is known of it."""
    lower = name.lower()
    if lower in _PLURALS:
        return None if lower == name else lower
    with_y = f"{lower.removesuffix('y')}ies" if lower.endswith("y") else ""
    candidates = (_SHORT.get(lower, ""), f"{lower}s", f"{lower}es", with_y)
    return next((plural for plural in candidates if plural in _PLURALS), None)
