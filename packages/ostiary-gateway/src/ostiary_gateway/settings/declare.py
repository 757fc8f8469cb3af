"""Settings declared as the fields of a dataclass.

    @dataclass(frozen=True, slots=True)
    class Timeouts:
        header: Annotated[timedelta, Duration("until all headers have come")] = timedelta(seconds=10)
        idle: Annotated[timedelta, Duration("between two requests of a connection")] = timedelta(minutes=2)

    timeouts = read_settings(Timeouts, fields, directory)

Type, default and kind (`settings.kinds`) are in the declaration only. A field without a default is required.
`read_settings` loads it; `settings.sections` derives JSON Schema and the reference tables. A dataclass whose settings
depend on each other has a method ``check``, which reports conflicts. The gateway uses it for its sections, and
providers for their own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar, cast, get_type_hints, runtime_checkable

from ostiary.core.yaml.document import Json
from ostiary.core.yaml.fields import ConfigSection
from ostiary_gateway.settings.kinds import SettingKind

S = TypeVar("S")


@runtime_checkable
class ChecksItself(Protocol):
    """A declaration whose settings depend on each other."""

    def check(self, fields: ConfigSection) -> None:
        """Report conflicts in *fields*. A consequence of an error that is already reported is not reported again."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting: its `attribute`, its `name` in the file, its kind and its default."""

    attribute: str
    name: str
    kind: SettingKind[object]
    default: object = dataclasses.MISSING

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def written_default(self) -> Json:
        """The default as written in a file; None if it has no written form."""
        if self.is_required or self.default is None or self.kind.unset:
            return None
        return self.kind.write(self.default)


@dataclass(frozen=True, slots=True)
class NoSettings:
    """Declaration of a provider without settings."""


class RawFields:
    """Marks an attribute that holds the `ConfigSection` itself, for settings that are read later."""


def settings_of(declaration: type) -> tuple[Setting, ...]:
    """Return the declared settings in order. Attributes without a kind are not settings."""
    return tuple(
        _setting(field, note)
        for field, notes in _annotated_fields(declaration)
        for note in notes
        if isinstance(note, SettingKind)
    )


def _setting(field: dataclasses.Field[object], kind: SettingKind[object]) -> Setting:
    name = kind.name or camel_case(field.name)
    return Setting(field.name, name, kind.of_setting(name), _default_of(field))


def _attributes_for_fields(declaration: type) -> tuple[str, ...]:
    return tuple(field.name for field, notes in _annotated_fields(declaration) if RawFields in notes)


@cache
def _annotated_fields(declaration: Hashable) -> tuple[tuple[dataclasses.Field[object], tuple[object, ...]], ...]:
    """Cached: evaluating the annotations of a class takes longer than reading a file."""
    cls = cast("type", declaration)
    hints = get_type_hints(cls, include_extras=True)
    return tuple((field, getattr(hints[field.name], "__metadata__", ())) for field in dataclasses.fields(cls))


def _default_of(field: dataclasses.Field[object]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def read_settings(declaration: type[S], fields: ConfigSection, directory: Path) -> S:
    """Read *fields* as *declaration* and report every error there. Relative paths are relative to *directory*."""
    values: dict[str, object] = dict.fromkeys(_attributes_for_fields(declaration), fields)
    for setting in settings_of(declaration):
        kind = setting.kind
        value = kind.read(fields, setting.name, directory)
        if value is None and setting.is_required:
            if fields.is_right(setting.name):
                fields.problem(kind.missing, setting.name, kind.missing_hint)
            values[setting.attribute] = kind.blank()
        elif value is not None:
            values[setting.attribute] = value
    settings = cast("Callable[..., S]", declaration)(**values)
    if isinstance(settings, ChecksItself):
        settings.check(fields)
    return settings


def camel_case(attribute: str) -> str:
    """Return the name of an attribute in the file: ``idle_timeout`` is ``idleTimeout``."""
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), attribute)
