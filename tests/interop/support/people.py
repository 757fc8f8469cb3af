"""Who there is in the interop tests, and what they may do: the same people at the cluster and at the gateway."""

from __future__ import annotations

from typing import Any

RBAC = "rbac.authorization.k8s.io"

GROUP_OF = {"alice": "dev", "bob": "readers", "carol": "operators", "mallory": "outsiders"}
"""One group each: a certificate of trustme can name one organization."""

NAMESPACES = ("team", "other", "unrecorded", "ostiary")
ROBOT = "system:serviceaccount:team:robot"


def rule(resources: str, verbs: str = "*", *, group: str = "", names: tuple[str, ...] = ()) -> dict[str, Any]:
    kept = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **kept}


def cluster_role(name: str, *rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [*rules], **more}


def binding(name: str, role: str, subject: dict[str, Any], *, namespace: str = "") -> dict[str, Any]:
    """*role* is a ClusterRole, bound everywhere or in *namespace*."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }


def group(name: str) -> dict[str, Any]:
    return {"apiGroup": RBAC, "kind": "Group", "name": name}


def user(name: str) -> dict[str, Any]:
    return {"apiGroup": RBAC, "kind": "User", "name": name}


def service_account(name: str, namespace: str) -> dict[str, Any]:
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def account(name: str, namespace: str) -> dict[str, Any]:
    """A service account to be made."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}


def manifests() -> list[dict[str, Any]]:
    """Alice works in team, bob reads there, carol may do everything, mallory next to nothing."""
    return [
        account("gateway", "ostiary"),
        account("robot", "team"),
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden", "namespace": "other"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hidden", "namespace": "other"}},
        binding("dev", "admin", group("dev"), namespace="team"),
        binding("dev-elsewhere", "edit", group("dev"), namespace="unrecorded"),
        binding("robot", "view", service_account("robot", "team"), namespace="team"),
        binding("readers", "view", group("readers"), namespace="team"),
        binding("operators", "cluster-admin", group("operators")),
        cluster_role("outsiders", rule("endpoints", "get", names=("nothing",))),
        binding("outsiders", "outsiders", group("outsiders"), namespace="other"),
        cluster_role(
            "dev-everywhere",
            rule("namespaces"),
            rule("clusterroles", "get list watch create delete patch", group=RBAC),
            rule("tokenreviews", "create", group="authentication.k8s.io"),
        ),
        binding("dev-everywhere", "dev-everywhere", group("dev")),
        cluster_role(
            "stand-in",
            rule("users", "impersonate", names=("bob", "noxu")),
            rule("groups", "impersonate", names=("readers", "system:authenticated")),
            rule("serviceaccounts", "impersonate", names=("robot",)),
        ),
        binding("stand-in", "stand-in", group("dev")),
    ]
