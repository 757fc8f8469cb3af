"""Nested settings, the settings of installed providers, and the JSON Schema and reference tables of declarations."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar, Protocol, Self, TypeVar, cast, runtime_checkable

from ostiary.core.entry_points import installed_entry_points
from ostiary.core.yaml.document import Json
from ostiary.core.yaml.fields import ConfigSection
from ostiary.errors import ConfigurationError
from ostiary_gateway.catalog import type_for_key
from ostiary_gateway.settings.declare import NoSettings, Setting, read_settings, settings_of
from ostiary_gateway.settings.kinds import Flag, SettingKind

# Settings of an installed provider, found without importing the provider:
#
#     [project.entry-points."ostiary.settings"]
#     "identity.ldap" = "ostiary_gateway.providers.ldap.settings:LdapIdentitySettings"
#
# The value is a dataclass for `settings.declare`, used by the JSON Schema, the reference and ``--check``. It has its
# own entry point because a provider may need packages that are not installed where a configuration is edited. The
# declaration is optional: without it only the provider knows its settings.

_GROUP = "settings"


def declared_settings(plugin_type: str, name: str) -> type | None:
    """Return the dataclass with the settings of a provider. None if there is none, or if two packages declare it."""
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


# --- JSON Schema, printed by ``ostiary-gateway serve --schema`` ---


@runtime_checkable
class ConstrainsFields(Protocol):
    """A declaration with a JSON Schema constraint across fields, such as both or none."""

    SCHEMA: ClassVar[Mapping[str, object]]


def object_schema(*declarations: type) -> dict[str, Json]:
    """Return the schema of an object with the fields of all *declarations* and no others."""
    settings = [setting for declaration in declarations for setting in settings_of(declaration)]
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {setting.name: setting_schema(setting) for setting in settings},
        "additionalProperties": False,
    }
    if required := required_names(settings):
        schema["required"] = list(required)
    for declaration in declarations:
        if isinstance(declaration, ConstrainsFields):
            schema.update(cast("Mapping[str, Json]", declaration.SCHEMA))
    return schema


def setting_schema(setting: Setting) -> dict[str, Json]:
    schema: dict[str, Json] = {"description": plain_text(setting.kind.doc), **setting.kind.schema()}
    default = setting.written_default
    if default is not None and default not in ([], ""):
        schema["default"] = default
    return schema


def required_names(settings: Iterable[Setting]) -> list[str]:
    """Return the names that must be in the file: required settings, and sections that contain one."""
    return [setting.name for setting in settings if setting.kind.must_be_written(is_required=setting.is_required)]


def plain_text(doc: str) -> str:
    """Convert a line of the reference from Markdown to a plain sentence."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", doc).replace("`", "").replace("*", "")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


S = TypeVar("S")


@dataclass(frozen=True)
class Section(SettingKind[S]):
    """Object declared by another dataclass. If absent, its defaults apply.

    `required`: it must be in the file, even though each of its settings is optional.
    """

    of: type[S]
    required: bool = False

    @property
    def label(self) -> str:
        return "section"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> S | None:
        return read_settings(self.of, fields.section(key), directory)

    def schema(self) -> dict[str, Json]:
        return object_schema(self.of)

    def blank(self) -> S:
        raise AssertionError("a section is read even if it is left out")

    def write(self, value: S) -> Json:
        return None

    def must_be_written(self, *, is_required: bool) -> bool:
        return self.required or bool(required_names(settings_of(self.of)))


@dataclass(frozen=True)
class OptionalSection(Section[S]):
    """Like `Section`, but None if absent."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> S | None:
        section = fields.optional_section(key)
        return None if section is None else read_settings(self.of, section, directory)

    def blank(self) -> S:
        return cast("S", None)

    def must_be_written(self, *, is_required: bool) -> bool:
        return is_required


@dataclass(frozen=True)
class ProviderSettings(SettingKind[ConfigSection]):
    """Settings of a provider under a key for its type (`catalog.type_for_key`). The provider reads them itself.

    The declaration is looked up on demand with `declared_settings`.
    """

    plugin_type: str
    key: str = ""

    def of_setting(self, name: str) -> Self:
        return replace(self, key=name)

    @property
    def label(self) -> str:
        return "section"

    @property
    def of(self) -> type:
        type_name = type_for_key(self.plugin_type, self.key)
        declaration = None if type_name is None else declared_settings(self.plugin_type, type_name)
        return NoSettings if declaration is None else declaration

    def read(self, fields: ConfigSection, key: str, directory: Path) -> ConfigSection | None:
        return fields.optional_section(key)

    def schema(self) -> dict[str, Json]:
        return object_schema(self.of)

    def blank(self) -> ConfigSection:
        return cast("ConfigSection", None)


@dataclass(frozen=True)
class ProviderFlag(Flag):
    """Enables a provider without settings, of the type that the key stands for."""

    plugin_type: str


@dataclass(frozen=True)
class Sections(SettingKind[tuple[S, ...]]):
    """List of objects; `entry` describes one of them. With `least` 1 the list must not be empty."""

    of: type[S]
    entry: str
    least: int = 0

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> tuple[S, ...] | None:
        entries = tuple(read_settings(self.of, section, directory) for section in fields.sections(key))
        return entries or None

    def schema(self) -> dict[str, Json]:
        least: dict[str, Json] = {"minItems": self.least} if self.least else {}
        return {"type": "array", **least, "items": {"description": self.entry, **object_schema(self.of)}}

    def blank(self) -> tuple[S, ...]:
        return ()

    def write(self, value: tuple[S, ...]) -> Json:
        return []


# --- reference tables in Markdown, written by ``scripts/reference`` ---

HEAD = "| field | type | default | |\n| --- | --- | --- | --- |"
RESTART = "A change needs a restart."


def table(declaration: type, *, with_sections: bool = True) -> str:
    """Return a table of the settings of *declaration*. Settings of a section are prefixed with its name."""
    settings = settings_of(declaration)
    if not with_sections:
        settings = tuple(setting for setting in settings if not isinstance(setting.kind, (Section, Sections)))
    return "\n".join((HEAD, *_rows(settings, "")))


def _rows(settings: Iterable[Setting], prefix: str, required: str = "required") -> Iterator[str]:
    """Yield the rows, required settings first."""
    for setting in sorted(settings, key=lambda setting: not setting.is_required):
        path, kind = f"{prefix}{setting.name}", setting.kind
        if isinstance(kind, (OptionalSection, ProviderSettings)) and not setting.is_required:
            yield from _rows(settings_of(kind.of), f"{path}.", f"required in `{path}`")
        elif isinstance(kind, Section):
            yield from _rows(settings_of(kind.of), f"{path}.", required)
        else:
            yield f"| `{path}` | {kind.label} | {_default(setting, required)} | {_meaning(setting)} |"
        if isinstance(kind, Sections):
            yield from _rows(settings_of(kind.of), f"{path}[].")


def _default(setting: Setting, required: str) -> str:
    if setting.is_required:
        return required
    default = setting.written_default
    if default is None:
        return setting.kind.unset
    return f"`{_as_yaml(default)}`" if default != [] else "none"


def _as_yaml(default: Json) -> str:
    return default if isinstance(default, str) else json.dumps(default).replace('"', "")


def _meaning(setting: Setting) -> str:
    return setting.kind.doc if setting.kind.reload else f"{setting.kind.doc}. {RESTART}"
