"""Names of built-in Kubernetes resources, and notes on likely misspellings: singular, short names, capitals. Pure.

Policies and reviews match only the lower-case plural, so ``pod``, ``po`` and ``Pods`` match nothing. kubectl queries
the cluster for the resource; offline checks of a policy cannot.
"""

from __future__ import annotations

from difflib import get_close_matches

from ostiary.core.policy_rules import ANY
from ostiary.core.scopes import Scope, group_and_resource
from ostiary.model import RequestInfo

# Subresources of built-in resources. A role must name them: in RBAC, a star after the slash is a plain name.
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

# API groups of built-in resources outside of the core group; without events and resources that exist in every group.
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
    """Return the API group of a built-in resource; None for the core group, and for unknown resources."""
    return _GROUPS.get(plural)


def plural_of(name: str) -> str | None:
    """Return the resource likely meant by *name*, which is no resource name itself; None if unknown."""
    lower = name.lower()
    if lower in _PLURALS:
        return None if lower == name else lower
    with_y = f"{lower.removesuffix('y')}ies" if lower.endswith("y") else ""
    candidates = (_SHORT.get(lower, ""), f"{lower}s", f"{lower}es", with_y)
    return next((plural for plural in candidates if plural in _PLURALS), None)


# Notes for commands with verbs and resources. A name that looks wrong may be right in a non-Kubernetes API, so these
# are notes and never errors.

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
_PATH_VERBS = ("get", "head", "post", "put", "patch", "delete", "options")
# No request has these verbs, but Kubernetes checks them against policies.
_VERBS_OF_POLICIES = ("approve", "attest", "bind", "escalate", "impersonate", "proxy", "sign", "use")


def misspelling_notes(request: RequestInfo) -> list[str]:
    notes = (_resource_note(request), _subresource_note(request)) if request.is_resource else ()
    return [note for note in (_verb_note(request), *notes) if note]


def scope_notes(scope: Scope) -> list[str]:
    """Return notes on the parts of *scope* that match nothing in Kubernetes, or more than they seem to."""
    notes: list[str] = []
    for rule in scope.rules:
        verbs = [verb for verb in rule.verbs if verb != ANY]
        for resource in rule.resources:
            group, name = group_and_resource(resource)
            kind, _, subresource = name.partition("/")
            if kind == ANY:
                notes += [f'"{rule}" includes secrets, and with create a shell in every pod'] if not subresource else []
                continue
            about = RequestInfo("get", "", "", True, api_group=group, resource=kind, subresource=subresource)
            notes += misspelling_notes(about)
        of_paths = bool(rule.paths)
        notes += filter(None, (_verb_note(RequestInfo(verb, "", "", not of_paths)) for verb in verbs))
    return list(dict.fromkeys(notes))


def _verb_note(request: RequestInfo) -> str | None:
    verbs = (*VERBS, *_VERBS_OF_POLICIES) if request.is_resource else _PATH_VERBS
    # Other verbs have a colon: impersonate-on:user-info:get, say.
    if request.verb in verbs or ":" in request.verb:
        return None
    close = get_close_matches(request.verb.lower(), verbs, n=1)
    suggestion = f'did you mean "{close[0]}"?' if close else f"there are {', '.join(verbs)}"
    return f'no request has the verb "{request.verb}": {suggestion}'


def _resource_note(request: RequestInfo) -> str | None:
    """Note a name that is not the lower-case plural, or has the wrong API group."""
    name, plural = request.resource, plural_of(request.resource)
    # A user who names a group knows it.
    group = None if request.api_group else group_of(plural or name)
    suggestion = (plural or name) + (f".{group}" if group else "")
    if plural:
        return f'resources are named in the plural and in lower case: did you mean "{suggestion}"?'
    if not name.endswith("s") or name != name.lower():
        return f'resources are named in the plural and in lower case, and "{name}" does not look like it'
    if group:
        return f'"{name}" is asked for in the core API group: did you mean "{suggestion}"?'
    return None


def _subresource_note(request: RequestInfo) -> str | None:
    """Note a subresource that looks like an object name: kubectl reads pods/web as one."""
    is_known = group_of(request.resource) or request.api_group == ""
    if not request.subresource or request.subresource in SUBRESOURCES or not is_known or request.name:
        return None
    return (
        f'"{request.subresource}" is asked for as a subresource: '
        f"the name of an object stands by itself, as in {request.resource} {request.subresource}"
    )
