"""Which kinds the cluster has, and what a path asks for.

The reading of paths is a second one, written for the tests: it must not share a mistake with ostiary's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.cluster.http import Record

STORED = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    verbs: tuple[str, ...] = STORED
    subresources: tuple[tuple[str, str], ...] = ()
    """Their names and kinds. Each can be got and created, which is how streams are asked for."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


POD_STREAMS = (("exec", "PodExecOptions"), ("log", "Pod"), ("portforward", "PodPortForwardOptions"))
RESOURCES = (
    Resource("", "v1", "namespaces", "Namespace", namespaced=False, short=("ns",)),
    Resource("", "v1", "pods", "Pod", short=("po",), subresources=POD_STREAMS),
    Resource("", "v1", "configmaps", "ConfigMap", short=("cm",)),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "services", "Service", short=("svc",)),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", short=("sa",), subresources=(("token", "TokenRequest"),)),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",)),
    Resource("", "v1", "nodes", "Node", namespaced=False, short=("no",)),
    Resource("apps", "v1", "deployments", "Deployment", short=("deploy",)),
    Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Resource(
        "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False, verbs=("create",)
    ),
    Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False, verbs=("create",)),
    Resource(
        "authorization.k8s.io",
        "v1",
        "subjectaccessreviews",
        "SubjectAccessReview",
        namespaced=False,
        verbs=("create",),
    ),
    Resource(
        "authorization.k8s.io",
        "v1",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        namespaced=False,
        verbs=("create",),
    ),
    Resource(
        "authorization.k8s.io",
        "v1",
        "selfsubjectrulesreviews",
        "SelfSubjectRulesReview",
        namespaced=False,
        verbs=("create",),
    ),
)
_BY_PATH = {(each.group, each.version, each.plural): each for each in RESOURCES}
_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for. Without a resource, only verb and path are set."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def kind(self) -> Resource | None:
        return _BY_PATH.get((self.group, self.version, self.resource))


def read_asked(record: Record) -> Asked:
    path = record.path
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return Asked(record.method.lower(), path)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        rest = rest[2:] if len(rest) > 2 and rest[2] not in ("status", "finalize") else rest
    resource, name, subresource = (*rest, "", "")[:3]
    verb = _VERBS.get(record.method, "")
    if not name and verb == "get":
        verb = "watch" if record.flag("watch") else "list"
    elif not name and verb == "delete":
        verb = "deletecollection"
    return Asked(verb, path, group, version, resource, subresource, namespace, name)


# --- discovery ---


def api_versions() -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def api_groups(more: tuple[str, ...] = ()) -> dict[str, Any]:
    names = list(dict.fromkeys((each.group, each.version) for each in RESOURCES if each.group))
    names += [(group, "v1") for group in more]
    versions = [(group, {"groupVersion": f"{group}/{version}", "version": version}) for group, version in names]
    groups = [{"name": group, "versions": [entry], "preferredVersion": entry} for group, entry in versions]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(name: str, more: tuple[str, ...] = ()) -> dict[str, Any] | None:
    group = next((each for each in api_groups(more)["groups"] if each["name"] == name), None)
    return None if group is None else {"kind": "APIGroup", "apiVersion": "v1", **group}


def api_resources(group: str, version: str) -> dict[str, Any] | None:
    """The resources of one group and version; None when there are none."""
    here = [each for each in RESOURCES if (each.group, each.version) == (group, version)]
    if not here:
        return None
    entries = [entry for each in here for entry in _entries(each)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": here[0].api_version, "resources": entries}


def _entries(resource: Resource) -> list[dict[str, Any]]:
    entry = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
        **({"shortNames": list(resource.short)} if resource.short else {}),
    }
    streams = [
        {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind,
            "verbs": ["create", "get"],
        }
        for name, kind in resource.subresources
    ]
    return [entry, *streams]


def aggregated_type(version: str) -> str:
    return f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def aggregated(root: str, version: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """All groups with their resources in one document."""
    served = [each for each in RESOURCES if bool(each.group) == (root == "apis")]
    names = list(dict.fromkeys((each.group, each.version) for each in served)) + [(group, "v1") for group in more]
    items = [
        {
            "metadata": {"name": group, "creationTimestamp": None},
            "versions": [
                {
                    "version": of,
                    "freshness": "Current",
                    "resources": [_aggregated(each) for each in served if (each.group, each.version) == (group, of)],
                }
            ],
        }
        for group, of in names
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _aggregated(resource: Resource) -> dict[str, Any]:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    return {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.kind.lower(),
        "shortNames": list(resource.short),
        "verbs": list(resource.verbs),
    }


def openapi_index() -> dict[str, Any]:
    paths = {_openapi_name(each) for each in RESOURCES}
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in sorted(paths)}}


def openapi_document(name: str) -> dict[str, Any] | None:
    """The least that lets kubectl leave validation to the server: PATCH knows ``fieldValidation``.

    No schema is here, so kubectl merges by the types that it was built with.
    """
    paths = {
        f"/{name}/{'namespaces/{namespace}/' if each.namespaced else ''}{each.plural}/{{name}}": {
            "patch": {
                "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                "responses": {},
                "x-kubernetes-group-version-kind": {"group": each.group, "version": each.version, "kind": each.kind},
            }
        }
        for each in RESOURCES
        if _openapi_name(each) == name
    }
    return {"openapi": "3.0.0", "info": {"title": "cluster", "version": "1"}, "paths": paths} if paths else None


def _openapi_name(resource: Resource) -> str:
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"
