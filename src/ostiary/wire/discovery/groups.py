"""The groups of an API server, with those of others added: ``APIGroupList``, and aggregated discovery.

    GET /apis    kind APIGroupList                               groups and versions
                 kind APIGroupDiscoveryList (v2 and v2beta1)     the same with all resources, and whether they are fresh

Called with what an upstream has answered. A group that the upstream has itself is never added, and added groups come
last, so that clients take the upstream's resource where two have one name. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ostiary.wire.discovery.resources import ListedResource, ListedVersion

AGGREGATED = "APIGroupDiscoveryList"
CURRENT, STALE = "Current", "Stale"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group and its versions, the preferred one first. `is_fresh`: the server that serves it says so now."""

    name: str
    versions: tuple[ListedVersion, ...]
    is_fresh: bool = True


@dataclass(frozen=True, slots=True)
class MergedGroups:
    """`taken` are groups that were left out, because the upstream serves them itself."""

    body: bytes
    taken: tuple[str, ...] = ()


def merge_groups(body: bytes, added: Sequence[ListedGroup]) -> MergedGroups:
    """The answer of ``/apis`` with the groups of *added*; raises `ValueError` for what is no such answer."""
    document = _document(body)
    aggregated = document.get("kind") == AGGREGATED
    key = "items" if aggregated else "groups"
    groups = document.get(key)
    if groups is None:
        groups = document[key] = []
    if document.get("kind") not in (AGGREGATED, "APIGroupList") or not isinstance(groups, list):
        raise ValueError("the answer is no list of API groups")
    names = {_name_of(group) for group in groups}
    for group in added:
        if group.name not in names:
            groups.append(_discovery_json(group) if aggregated else group_json(group))
    taken = tuple(group.name for group in added if group.name in names)
    return MergedGroups(json.dumps(document, separators=(",", ":")).encode(), taken)


def group_json(group: ListedGroup) -> dict[str, object]:
    """As an entry of an ``APIGroupList``."""
    versions = [{"groupVersion": f"{group.name}/{each.version}", "version": each.version} for each in group.versions]
    return {"name": group.name, "versions": versions, "preferredVersion": versions[0]}


def _discovery_json(group: ListedGroup) -> dict[str, object]:
    """As an entry of an ``APIGroupDiscoveryList``. kubectl reports a stale version, and goes on without it."""
    freshness = CURRENT if group.is_fresh else STALE
    versions = [
        {"version": each.version, "resources": _discovery_resources(group.name, each), "freshness": freshness}
        for each in group.versions
    ]
    return {"metadata": {"name": group.name, "creationTimestamp": None}, "versions": versions}


def _discovery_resources(group: str, version: ListedVersion) -> list[dict[str, object]]:
    return [
        {
            "resource": each.name,
            "responseKind": _kind_json(group, version.version, each),
            "scope": "Namespaced" if each.namespaced else "Cluster",
            "singularResource": each.singular,
            "verbs": list(each.verbs),
            **({"shortNames": list(each.short_names)} if each.short_names else {}),
            **({"categories": list(each.categories)} if each.categories else {}),
            **_subresources(group, version, each.name),
        }
        for each in version.resources
        if not each.subresource
    ]


def _subresources(group: str, version: ListedVersion, resource: str) -> dict[str, object]:
    entries = [
        {
            "subresource": each.subresource,
            "responseKind": _kind_json(group, version.version, each),
            "verbs": list(each.verbs),
        }
        for each in version.resources
        if each.subresource and each.name == resource
    ]
    return {"subresources": entries} if entries else {}


def _kind_json(group: str, version: str, resource: ListedResource) -> dict[str, str]:
    return {
        "group": resource.kind_group or group,
        "version": resource.kind_version or version,
        "kind": resource.kind,
    }


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the answer is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("the answer is not a JSON object")
    return document


def _name_of(group: object) -> str:
    """Of an entry of either list."""
    fields = group if isinstance(group, dict) else {}
    metadata = fields.get("metadata")
    name = fields.get("name") or (metadata.get("name") if isinstance(metadata, dict) else "")
    return name if isinstance(name, str) else ""
