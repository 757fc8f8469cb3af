"""Discovery and OpenAPI documents: parse those of API plugins, and merge them into those of an upstream. Pure.

    GET /apis    kind APIGroupList                               groups and versions
                 kind APIGroupDiscoveryList (v2 and v2beta1)     also all resources, and whether they are current

A group that the upstream serves itself is never added. Added groups come last, so that clients prefer the upstream's
resource of two with the same name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# ``APIResourceList`` of an API plugin, which is untrusted: the gateway serves it under its own name. Only fields that
# Kubernetes defines are copied, and only for the group that the API is registered for.

MOST_RESOURCES = 500
MOST_WORDS = 64
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,61}[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[a-z0-9]{1,63}", re.ASCII)
_HASH = re.compile(r"[A-Za-z0-9]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListedResource:
    """A resource, or a subresource. Empty `kind_group` and `kind_version` mean those of the list."""

    name: str
    kind: str
    namespaced: bool
    verbs: tuple[str, ...]
    subresource: str = ""
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    kind_group: str = ""
    kind_version: str = ""


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """One version of a group. `openapi_hash` identifies its OpenAPI document; None if it has none."""

    version: str
    resources: tuple[ListedResource, ...] = ()
    openapi_hash: str | None = None


def decode_resources(body: bytes, group_version: str) -> tuple[ListedResource, ...]:
    """Decode the resources in *body*; raises `ValueError` with a message that does not quote it."""
    fields = _object(_json(body), "the list of resources")
    if fields.get("groupVersion") != group_version:
        raise ValueError("the list of resources is of another group or version")
    entries = fields.get("resources")
    if not isinstance(entries, list) or len(entries) > MOST_RESOURCES:
        raise ValueError("the list of resources has no resources, or too many")
    return tuple(_resource(_object(entry, "a resource")) for entry in entries)


def decode_openapi_hashes(body: bytes, group: str) -> Mapping[str, str]:
    """Return the hash of the OpenAPI v3 document per version, from the index of the API; raises `ValueError`."""
    paths = _object(_object(_json(body), "the OpenAPI index").get("paths"), "the OpenAPI index")
    hashes: dict[str, str] = {}
    for path, entry in paths.items():
        prefix, _, version = str(path).rpartition("/")
        if prefix == f"apis/{group}" and _VERSION.fullmatch(version):
            url = _object(entry, "an entry of the OpenAPI index").get("serverRelativeURL")
            match = _HASH.fullmatch(str(url).rpartition("hash=")[2]) if isinstance(url, str) else None
            hashes[version] = match[0] if match is not None and isinstance(url, str) and "hash=" in url else ""
    return hashes


def _resource(entry: Mapping[str, Any]) -> ListedResource:
    name, slash, subresource = _text(entry, "name").partition("/")
    if not _NAME.fullmatch(name) or (slash and not all(map(_NAME.fullmatch, subresource.split("/")))):
        raise ValueError("a resource has a name that is none")
    if not _KIND.fullmatch(_text(entry, "kind")):
        raise ValueError("a resource has a kind that is none")
    namespaced = entry.get("namespaced")
    if not isinstance(namespaced, bool):
        raise ValueError("a resource does not say whether it is namespaced")
    return ListedResource(
        name,
        _text(entry, "kind"),
        namespaced,
        _words(entry, "verbs"),
        subresource,
        _optional(entry, "singularName", _NAME),
        _words(entry, "shortNames"),
        _words(entry, "categories"),
        _optional(entry, "group", _WORD),
        _optional(entry, "version", _VERSION),
    )


def resource_json(resource: ListedResource) -> dict[str, object]:
    """Encode as an entry of an ``APIResourceList``."""
    name = f"{resource.name}/{resource.subresource}" if resource.subresource else resource.name
    optional = {
        "group": resource.kind_group,
        "version": resource.kind_version,
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
    }
    return {
        "name": name,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
        **{key: value for key, value in optional.items() if value},
    }


def resource_list_json(group_version: str, resources: Sequence[ListedResource]) -> dict[str, object]:
    entries = [resource_json(each) for each in resources]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def _json(body: bytes) -> object:
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    return value


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a JSON object")
    return value


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str):
        raise ValueError(f"a resource has no {key}")
    return value


def _optional(entry: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = entry.get(key) or ""
    if value and not (isinstance(value, str) and pattern.fullmatch(value)):
        raise ValueError(f"a resource has a {key} that is none")
    return str(value)


def _words(entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = entry.get(key) or []
    if not isinstance(value, list) or len(value) > MOST_WORDS:
        raise ValueError(f"a resource has {key} that are none")
    return tuple(_checked_words(value, key))


def _checked_words(value: list[object], key: str) -> Iterator[str]:
    for word in value:
        if word == "*" and key == "verbs":
            yield "*"
        elif isinstance(word, str) and _WORD.fullmatch(word):
            yield word
        else:
            raise ValueError(f"a resource has {key} that are none")


AGGREGATED = "APIGroupDiscoveryList"
CURRENT, STALE = "Current", "Stale"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group and its versions, the preferred one first. `is_fresh`: its server has confirmed it recently."""

    name: str
    versions: tuple[ListedVersion, ...]
    is_fresh: bool = True


@dataclass(frozen=True, slots=True)
class MergedGroups:
    """The merged document. `taken` are groups that were left out, because the upstream serves them itself."""

    body: bytes
    taken: tuple[str, ...] = ()


def merge_groups(body: bytes, added: Sequence[ListedGroup]) -> MergedGroups:
    """Add the groups of *added* to a response of ``/apis``; raises `ValueError` for anything else."""
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
    """Encode as an entry of an ``APIGroupList``."""
    versions = [{"groupVersion": f"{group.name}/{each.version}", "version": each.version} for each in group.versions]
    return {"name": group.name, "versions": versions, "preferredVersion": versions[0]}


def _discovery_json(group: ListedGroup) -> dict[str, object]:
    """Encode as an entry of an ``APIGroupDiscoveryList``. kubectl reports a stale version, and continues without it."""
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
    """Return the name of an entry of either list."""
    fields = group if isinstance(group, dict) else {}
    metadata = fields.get("metadata")
    name = fields.get("name") or (metadata.get("name") if isinstance(metadata, dict) else "")
    return name if isinstance(name, str) else ""


# Content negotiation.

JSON = "application/json"


def accepted_json(accept: str) -> str:
    """Return the JSON types in an ``Accept`` header, unchanged; empty if the client accepts none.

    The parameters are retained: with them kubectl requests aggregated discovery, and its version.
    """
    entries = [entry.strip() for entry in accept.split(",") if entry.strip()]
    if not entries:
        return JSON
    as_json = [entry for entry in entries if _media_type(entry) == JSON]
    if as_json:
        return ",".join(as_json)
    return JSON if any(_media_type(entry) in ("*/*", "application/*") for entry in entries) else ""


def _media_type(entry: str) -> str:
    return entry.partition(";")[0].strip().lower()


# OpenAPI: the index of v3, and the single document of v2. What the upstream describes is never replaced: a plugin that
# redefines ``Pod`` would change how kubectl explains and validates pods.


def merge_openapi_index(body: bytes, added: Sequence[ListedGroup]) -> bytes:
    """Add the documents of *added* to a response of ``/openapi/v3``; raises `ValueError`."""
    document = _document(body)
    paths = document.setdefault("paths", {})
    if not isinstance(paths, dict):
        raise ValueError("the answer is no OpenAPI index")
    for group in added:
        for version in group.versions:
            if version.openapi_hash is not None:
                path = f"apis/{group.name}/{version.version}"
                query = f"?hash={version.openapi_hash}" if version.openapi_hash else ""
                paths.setdefault(path, {"serverRelativeURL": f"/openapi/v3/{path}{query}"})
    return json.dumps(document, separators=(",", ":")).encode()


def merge_openapi_v2(body: bytes, added: Sequence[tuple[str, bytes]]) -> bytes:
    """Add to a response of ``/openapi/v2`` what the documents in *added* define about their own groups.

    *added* are groups and documents. An invalid document is left out. Raises `ValueError` if *body* is invalid.
    """
    document = _document(body)
    paths, definitions = document.setdefault("paths", {}), document.setdefault("definitions", {})
    if not isinstance(paths, dict) or not isinstance(definitions, dict):
        raise ValueError("the answer is no OpenAPI document")
    for group, text in added:
        try:
            other = _document(text)
        except ValueError:
            continue
        own = f"/apis/{group}/"
        for path, item in _mapping(other.get("paths")).items():
            if path.startswith(own):
                paths.setdefault(path, item)
        for name, definition in _mapping(other.get("definitions")).items():
            if _is_about(group, definition):
                definitions.setdefault(name, definition)
    return json.dumps(document, separators=(",", ":")).encode()


def _is_about(group: str, definition: object) -> bool:
    """Whether it is of *group*, or of no kind at all. kubectl finds definitions by their kind, whatever their name."""
    kinds = _mapping(definition).get("x-kubernetes-group-version-kind") or []
    return isinstance(kinds, list) and all(_mapping(kind).get("group") == group for kind in kinds)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
