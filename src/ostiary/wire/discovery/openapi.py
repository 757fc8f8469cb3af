"""OpenAPI documents of an API server, with those of others added: the index of v3, and the one document of v2.

Called with what an upstream has answered. What the upstream describes is never replaced: a plugin that describes a
``Pod`` otherwise would change what kubectl tells and checks about pods. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ostiary.wire.discovery.groups import ListedGroup


def merge_openapi_index(body: bytes, added: Sequence[ListedGroup]) -> bytes:
    """The answer of ``/openapi/v3`` with the documents of *added*; raises `ValueError`."""
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
    """The answer of ``/openapi/v2`` with what *added* say about their own groups; raises `ValueError`.

    *added* are groups with the documents of their servers. One that cannot be read is left out.
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


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the answer is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("the answer is not a JSON object")
    return document
