"""Discovery documents of the plugin, and OpenAPI for ``kubectl explain`` and validation."""

from __future__ import annotations

import hashlib
import json
from typing import Any

GROUP, VERSION, KIND = "builds.example.com", "v1", "Build"
API_VERSION = f"{GROUP}/{VERSION}"
_GVK = {"group": GROUP, "version": VERSION, "kind": KIND}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]

_PREFERRED = {"groupVersion": API_VERSION, "version": VERSION}
API_GROUP: dict[str, Any] = {
    "kind": "APIGroup",
    "apiVersion": "v1",
    "name": GROUP,
    "versions": [_PREFERRED],
    "preferredVersion": _PREFERRED,
}
RESOURCES: dict[str, Any] = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": API_VERSION,
    "resources": [
        {
            "name": "builds",
            "singularName": "build",
            "namespaced": True,
            "kind": KIND,
            "verbs": _VERBS,
            "shortNames": ["bld"],
            "categories": ["ci"],
        }
    ],
}

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "A Build makes an image of a source.",
    "properties": {
        "apiVersion": {"type": "string", "description": "The version of this API."},
        "kind": {"type": "string", "description": "Build"},
        "metadata": {"type": "object", "description": "Name, namespace, labels."},
        "spec": {
            "type": "object",
            "description": "What is built.",
            "properties": {
                "image": {"type": "string", "description": "The image that is made."},
                "source": {"type": "string", "description": "Where the source is."},
            },
        },
        "status": {"type": "object", "description": "How far it is, and who asked for it."},
    },
    "x-kubernetes-group-version-kind": [_GVK],
}
_OBJECT_PATH = f"/apis/{API_VERSION}/namespaces/{{namespace}}/builds/{{name}}"


def _operation(action: str, reference: str) -> dict[str, Any]:
    """Return an operation with the parameter ``fieldValidation``, so that kubectl leaves validation to the server."""
    return {
        "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": reference}}}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _GVK,
    }


OPENAPI_V3: dict[str, Any] = {
    "openapi": "3.0.0",
    "info": {"title": "Builds", "version": VERSION},
    "paths": {
        _OBJECT_PATH: {
            "get": _operation("get", "#/components/schemas/com.example.builds.v1.Build"),
            "patch": _operation("patch", "#/components/schemas/com.example.builds.v1.Build"),
        }
    },
    "components": {"schemas": {"com.example.builds.v1.Build": _SCHEMA}},
}
OPENAPI_V2: dict[str, Any] = {
    "swagger": "2.0",
    "info": {"title": "Builds", "version": VERSION},
    "paths": {_OBJECT_PATH: {"get": {"responses": {"200": {"description": "OK"}}}}},
    "definitions": {"com.example.builds.v1.Build": _SCHEMA},
}
_HASH = hashlib.sha256(json.dumps(OPENAPI_V3).encode()).hexdigest().upper()

DOCUMENTS: dict[str, dict[str, Any]] = {
    f"/apis/{GROUP}": API_GROUP,
    f"/apis/{API_VERSION}": RESOURCES,
    "/openapi/v2": OPENAPI_V2,
    "/openapi/v3": {
        "paths": {f"apis/{API_VERSION}": {"serverRelativeURL": f"/openapi/v3/apis/{API_VERSION}?hash={_HASH}"}}
    },
    f"/openapi/v3/apis/{API_VERSION}": OPENAPI_V3,
    "/readyz": {"status": "ok"},
}
