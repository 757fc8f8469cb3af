"""What an API says of its resources (``APIResourceList``), read with suspicion: it comes from a less trusted server.

Called for API plugins, whose discovery the gateway passes on under its own name. Only what Kubernetes defines is kept,
and only about the group that the API is registered for. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_RESOURCES = 500
MOST_WORDS = 64
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,61}[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[a-z0-9]{1,63}", re.ASCII)
_HASH = re.compile(r"[A-Za-z0-9]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListedResource:
    """One resource, or a subresource if it has one. `kind_group` and `kind_version` empty: those of the list."""

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
    """One version of a group. `openapi_hash` names its OpenAPI document; None if it has none."""

    version: str
    resources: tuple[ListedResource, ...] = ()
    openapi_hash: str | None = None


def decode_resources(body: bytes, group_version: str) -> tuple[ListedResource, ...]:
    """The resources in *body*; raises `ValueError` with what is wrong, which quotes nothing of it."""
    fields = _object(_json(body), "the list of resources")
    if fields.get("groupVersion") != group_version:
        raise ValueError("the list of resources is of another group or version")
    entries = fields.get("resources")
    if not isinstance(entries, list) or len(entries) > MOST_RESOURCES:
        raise ValueError("the list of resources has no resources, or too many")
    return tuple(_resource(_object(entry, "a resource")) for entry in entries)


def decode_openapi_hashes(body: bytes, group: str) -> Mapping[str, str]:
    """By version: the hash of its OpenAPI v3 document, as the index of the API says; raises `ValueError`."""
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
    """As an entry of an ``APIResourceList``."""
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
