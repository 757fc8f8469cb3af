"""Settings that are mappings: each is declared by a dataclass of its own, inside another declaration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar, cast

from ostiary.core.catalog import type_for_key
from ostiary.core.config.document import Json
from ostiary.core.config.fields import Fields
from ostiary.core.settings.declare import NoSettings, read_settings, settings_of
from ostiary.core.settings.kinds import Flag, SettingKind
from ostiary.core.settings.plugin_settings import declared_settings
from ostiary.core.settings.schema import object_schema, required_names

S = TypeVar("S")


@dataclass(frozen=True)
class Section(SettingKind[S]):
    """A mapping whose fields are declared by another dataclass. Left out, its defaults hold.

    With `required` it must be written, though each of its settings may be left out.
    """

    of: type[S]
    required: bool = False

    @property
    def label(self) -> str:
        return "section"

    def read(self, fields: Fields, key: str, directory: Path) -> S | None:
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
    """The same, but left out it is None."""

    def read(self, fields: Fields, key: str, directory: Path) -> S | None:
        section = fields.optional_section(key)
        return None if section is None else read_settings(self.of, section, directory)

    def blank(self) -> S:
        return cast("S", None)

    def must_be_written(self, *, is_required: bool) -> bool:
        return is_required


@dataclass(frozen=True)
class ProviderSettings(SettingKind[Fields]):
    """The settings of a provider, under a key that stands for its type (`catalog.type_for_key`). It reads them itself.

    What they are, the type declares (`core.settings.plugin_settings`); that is looked up when somebody asks.
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

    def read(self, fields: Fields, key: str, directory: Path) -> Fields | None:
        return fields.optional_section(key)

    def schema(self) -> dict[str, Json]:
        return object_schema(self.of)

    def blank(self) -> Fields:
        return cast("Fields", None)


@dataclass(frozen=True)
class ProviderFlag(Flag):
    """Whether there is a provider without settings, of the type that the key stands for."""

    plugin_type: str


@dataclass(frozen=True)
class Sections(SettingKind[tuple[S, ...]]):
    """A list of mappings; `entry` says what one of them is. With `least` 1 the list must not be empty."""

    of: type[S]
    entry: str
    least: int = 0

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: Fields, key: str, directory: Path) -> tuple[S, ...] | None:
        entries = tuple(read_settings(self.of, section, directory) for section in fields.sections(key))
        return entries or None

    def schema(self) -> dict[str, Json]:
        least: dict[str, Json] = {"minItems": self.least} if self.least else {}
        return {"type": "array", **least, "items": {"description": self.entry, **object_schema(self.of)}}

    def blank(self) -> tuple[S, ...]:
        return ()

    def write(self, value: tuple[S, ...]) -> Json:
        return []
