"""Finds the settings that an installed provider declares, without importing the provider.

    [project.entry-points."ostiary.settings"]
    "identity.ldap" = "ostiary.plugins.ldap.settings:LdapIdentitySettings"

The value is a dataclass as `core.settings.declare` describes it. The JSON Schema, the reference and ``--check`` use it.
It has an entry point of its own because a provider may need packages that are not installed where somebody edits a
configuration. A provider that declares nothing works as well: its settings are then known to itself alone.
"""

from __future__ import annotations

import dataclasses
from importlib.metadata import EntryPoint

from ostiary.core.entry_points import installed_entry_points
from ostiary.errors import ConfigurationError

_GROUP = "settings"


def declared_settings(plugin_type: str, name: str) -> type | None:
    """The dataclass that declares the settings of a provider; None if there is none, or two packages claim it."""
    points = {point.value: point for point in installed_entry_points(_GROUP).select(name=f"{plugin_type}.{name}")}
    return _load(*points.values()) if len(points) == 1 else None


def _load(point: EntryPoint) -> type:
    try:
        declaration = point.load()
    except Exception as error:
        cause = f"{point.value} fails when it is imported: {type(error).__name__}"
        summary = f'the settings "{point.name}" cannot be loaded'
        raise ConfigurationError(summary, cause=cause, code="plugin-broken") from error
    if not isinstance(declaration, type) or not dataclasses.is_dataclass(declaration):
        cause = f"{point.value} is not a dataclass"
        raise ConfigurationError(f'the settings "{point.name}" cannot be used', cause=cause, code="plugin-broken")
    return declaration
