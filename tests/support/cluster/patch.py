"""PATCH: JSON merge patch (RFC 7386), and the strategic one that kubectl apply sends for kinds it was built with.

Kubernetes learns from its types which lists are maps in disguise, and by which field; here a table of field names
says so, for the kinds that the tests use.
"""

from __future__ import annotations

import copy
from typing import Any

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
ACCEPTED = [MERGE, STRATEGIC, APPLY]

# Lists of objects that merge by a key. ``ports`` is a container's or a service's: whichever key its items have.
_MERGE_KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port"),
    "conditions": ("type",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
}
_SET_ORDER, _REMOVE, _RETAIN = "$setElementOrder/", "$deleteFromPrimitiveList/", "$retainKeys"


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic_merge(target: Any, patch: dict[str, Any]) -> dict[str, Any]:
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    if _RETAIN in patch:
        result = {key: value for key, value in result.items() if key in patch[_RETAIN]}
    for key, value in patch.items():
        if key.startswith(_REMOVE):
            field = key.removeprefix(_REMOVE)
            result[field] = [each for each in result.get(field, []) if each not in value]
        elif value is None:
            result.pop(key, None)
        elif not key.startswith("$"):
            result[key] = _merged(key, result.get(key), value)
    for key, order in patch.items():
        if key.startswith(_SET_ORDER) and (field := key.removeprefix(_SET_ORDER)) in result:
            result[field] = _ordered(field, result[field], order)
    return result


def _merged(field: str, old: Any, new: Any) -> Any:
    if isinstance(new, dict):
        return strategic_merge(old, new)
    if isinstance(new, list) and isinstance(old, list) and field in _MERGE_KEYS:
        return _merged_list(field, old, new)
    return copy.deepcopy(new)


def _merged_list(field: str, old: list[Any], new: list[Any]) -> list[Any]:
    if {"$patch": "replace"} in new:
        return [each for each in new if "$patch" not in each]
    items = {_identity(field, each): each for each in old}
    for each in new:
        identity = _identity(field, each)
        if each.get("$patch") == "delete":
            items.pop(identity, None)
        else:
            items[identity] = strategic_merge(items.get(identity), each)
    return list(items.values())


def _ordered(field: str, items: list[Any], order: list[Any]) -> list[Any]:
    """*items* in the order that the client wishes; those it does not know of stay at the end."""
    wished = [_identity(field, each) for each in order]
    known = {identity: place for place, identity in enumerate(wished)}
    return sorted(items, key=lambda each: known.get(_identity(field, each), len(known)))


def _identity(field: str, item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    return next((item[key] for key in _MERGE_KEYS.get(field, ()) if key in item), None)
