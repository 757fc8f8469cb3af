"""The names of Kubernetes' own resources, as far as people write them differently: in the singular, or short.

Policies and reviews know the plural in lower case only, so ``pod``, ``po`` and ``Pods`` are names that match nothing.
kubectl asks the cluster which resource is meant; nobody can be asked where a policy is looked at.
"""

from __future__ import annotations

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


def plural_of(name: str) -> str | None:
    """What was likely meant by *name*, which is no resource's name as it stands; None if nothing is known of it."""
    lower = name.lower()
    if lower in _PLURALS:
        return None if lower == name else lower
    with_y = f"{lower.removesuffix('y')}ies" if lower.endswith("y") else ""
    candidates = (_SHORT.get(lower, ""), f"{lower}s", f"{lower}es", with_y)
    return next((plural for plural in candidates if plural in _PLURALS), None)
