"""API plugins in the gateway's own API group: JSON to model. Pure.

Called by the API that registers them (`ostiary.gateway.doors.api_plugins.api`). Raises `ValueError` with a message that
the sender may read. What the values mean is checked by whoever registers the plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostiary.wire.ostiary_dev.body_fields import check_kind, object_fields, text_field

KIND = "APIPlugin"
LONGEST_CA = 32 * 1024
MOST_ENTRIES = 16
_SPEC = ("upstream", "group", "versions", "server", "ca", "pins", "serverName", "health")


@dataclass(frozen=True, slots=True)
class PluginRequest:
    """What a body says of a plugin. `name` is empty where it says nothing: it follows from upstream and group."""

    name: str
    upstream: str
    group: str
    versions: tuple[str, ...]
    server: str
    ca: str = ""
    pins: tuple[str, ...] = ()
    server_name: str = ""
    health: str = ""


def decode_plugin_request(value: Any) -> PluginRequest:
    fields = object_fields(value, "the body", ("kind", "apiVersion", "metadata", "spec"))
    check_kind(fields, KIND)
    metadata = object_fields(fields.get("metadata", {}), "metadata", ("name",))
    spec = object_fields(fields.get("spec", {}), "spec", _SPEC)
    texts = {key: text_field(spec, key, f"spec.{key}", 1024) or "" for key in ("upstream", "group", "server")}
    for key, text in texts.items():
        if not text:
            raise ValueError(f"spec.{key} is missing")
    return PluginRequest(
        text_field(metadata, "name", "metadata.name", 512) or "",
        **texts,
        versions=_texts(spec, "versions"),
        ca=_pem(spec),
        pins=_texts(spec, "pins"),
        server_name=text_field(spec, "serverName", "spec.serverName", 253) or "",
        health=text_field(spec, "health", "spec.health", 1024) or "",
    )


def _pem(spec: Mapping[str, Any]) -> str:
    text = spec.get("ca") or ""
    if not isinstance(text, str) or len(text) > LONGEST_CA or not text.isascii():
        raise ValueError(f"spec.ca is not PEM of {LONGEST_CA} characters at most")
    return text


def _texts(spec: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = spec.get(key) or []
    if not isinstance(values, list) or len(values) > MOST_ENTRIES or not all(isinstance(each, str) for each in values):
        raise ValueError(f"spec.{key} is not a list of {MOST_ENTRIES} strings at most")
    return tuple(values)
