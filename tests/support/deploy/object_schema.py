"""Checks objects against the schemas of a real kube-apiserver, without one.

``tests/vectors/kubernetes-objects.json.gz`` has them for the kinds of ``deploy/``. ``tests/interop/test_deploy.py``
compares it with what the server says today, and writes it again if ``OSTIARY_WRITE_SCHEMAS`` is set. Like the server
with ``fieldValidation=Strict``, a field that it does not know is a mistake.

``prometheus-operator-crds.json.gz`` has two CustomResourceDefinitions of the Prometheus Operator, without their
descriptions.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]

_VECTORS = Path(__file__).parents[2] / "vectors"
STORED = _VECTORS / "kubernetes-objects.json.gz"
DEFINITIONS = _VECTORS / "prometheus-operator-crds.json.gz"

# Which kinds are kept: API version -> kinds.
KINDS: Mapping[str, tuple[str, ...]] = {
    "v1": ("ConfigMap", "Namespace", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
    "rbac.authorization.k8s.io/v1": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
}
_REFERENCE = "#/components/schemas/"
# What says nothing about whether an object is right.
_SILENT = ("description", "default", "example", "externalDocs")


def openapi_path(api_version: str) -> str:
    return f"/openapi/v3/{'apis' if '/' in api_version else 'api'}/{api_version}"


def extract(documents: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas of `KINDS` and of all that they contain, from OpenAPI documents by their API version."""
    schemas: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for api_version, document in documents.items():
        all_schemas = document["components"]["schemas"]
        for kind in KINDS[api_version]:
            name = _name_of(api_version, kind, all_schemas)
            kinds[f"{api_version} {kind}"] = name
            _add_with_parts(name, all_schemas, schemas)
    return {"kinds": dict(sorted(kinds.items())), "schemas": dict(sorted(schemas.items()))}


def mistakes(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with *document*, with the place of each mistake; nothing if it is right."""
    schema = _schema_of(str(document.get("apiVersion")), str(document.get("kind")))
    if schema is None:
        return [f"{document.get('apiVersion')} {document.get('kind')} is not a kind that is known here"]
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{document['kind']}: {error.json_path}: {error.message}" for error in errors]


def _schema_of(api_version: str, kind: str) -> dict[str, Any] | None:
    stored = read_stored()
    if name := stored["kinds"].get(f"{api_version} {kind}"):
        return {"$ref": _REFERENCE + name, "components": {"schemas": stored["schemas"]}}
    for definition in custom_definitions():
        for version in definition["spec"]["versions"]:
            named = f"{definition['spec']['group']}/{version['name']}", definition["spec"]["names"]["kind"]
            if named == (api_version, kind):
                schema: dict[str, Any] = _strict(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = True
                return schema
    return None


@cache
def custom_definitions() -> list[dict[str, Any]]:
    definitions: list[dict[str, Any]] = json.loads(gzip.decompress(DEFINITIONS.read_bytes()))
    return definitions


@cache
def read_stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(gzip.decompress(STORED.read_bytes()))
    return stored


def write_stored(schemas: Mapping[str, Any]) -> None:
    text = json.dumps(schemas, separators=(",", ":"), sort_keys=True)
    STORED.write_bytes(gzip.compress(text.encode(), mtime=0))
    read_stored.cache_clear()


def _name_of(api_version: str, kind: str, schemas: Mapping[str, Any]) -> str:
    group, _, version = api_version.rpartition("/")
    wanted = {"group": group, "version": version, "kind": kind}
    return next(name for name, schema in schemas.items() if wanted in schema.get("x-kubernetes-group-version-kind", ()))


def _add_with_parts(name: str, schemas: Mapping[str, Any], kept: dict[str, Any]) -> None:
    if name not in kept:
        kept[name] = _strict(schemas[name])
        for part in _references(kept[name]):
            _add_with_parts(part, schemas, kept)


def _strict(schema: Any) -> Any:
    """*schema* without what is for people, and closed: a field that is not in it is a mistake."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {
        key: {field: _strict(value) for field, value in part.items()} if key == "properties" else _strict(part)
        for key, part in schema.items()
        if key not in _SILENT and not key.startswith("x-kubernetes-")
    }
    if "properties" in strict:
        strict.setdefault("additionalProperties", False)
    return strict


def _references(schema: Any) -> Iterable[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)
    elif isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(_REFERENCE)
        for value in schema.values():
            yield from _references(value)
