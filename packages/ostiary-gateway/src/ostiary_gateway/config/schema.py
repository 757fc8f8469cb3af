"""The JSON Schema of ``gateway.yaml``, derived from the declarations; printed by ``ostiary-gateway serve --schema``.

Provider types add the settings that they declare. A type without a declaration accepts any settings.
"""

from __future__ import annotations

from typing import cast

from ostiary.core.entry_points import list_entries
from ostiary.core.yaml import Json
from ostiary_gateway.config.audit import AuditEntry
from ostiary_gateway.config.gateway_file import (
    AdmissionEntry,
    AttributesEntry,
    AuthorizationEntry,
    GatewayFile,
    GroupEntry,
    IdentityEntry,
    StoreEntry,
)
from ostiary_gateway.settings.sections import declared_settings, object_schema

# Fields that all entries of a plugin type have.
ENTRIES: dict[str, type] = {
    "identity": IdentityEntry,
    "group": GroupEntry,
    "authorization": AuthorizationEntry,
    "admission": AdmissionEntry,
    "token_store": StoreEntry,
    "attributes": AttributesEntry,
    "audit": AuditEntry,
}


def gateway_schema() -> dict[str, Json]:
    definitions: dict[str, Json] = {}
    for plugin_type, entry in ENTRIES.items():
        names = sorted({entry.name for entry in list_entries(plugin_type)})
        declared = {name: declaration for name in names if (declaration := declared_settings(plugin_type, name))}
        for name, declaration in declared.items():
            description = f"The settings of the type {name}."
            definitions[f"{plugin_type}.{name}"] = {"description": description, **object_schema(entry, declaration)}
        definitions[plugin_type] = _any_entry(entry, plugin_type, list(declared))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:ostiary:gateway:v1",
        "title": "The configuration of the ostiary gateway",
        **object_schema(GatewayFile),
        "$defs": definitions,
    }


def _any_entry(entry: type, plugin_type: str, declared: list[str]) -> dict[str, Json]:
    schema = object_schema(entry)
    del schema["additionalProperties"]
    schema["allOf"] = cast("Json", [_if_type(plugin_type, name) for name in declared])
    return schema


def _if_type(plugin_type: str, name: str) -> dict[str, Json]:
    return {
        "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
        "then": {"$ref": f"#/$defs/{plugin_type}.{name}"},
    }
