"""Settings that are one of a few values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

from ostiary.core.config import Fields, Json
from ostiary.core.settings.kinds.kind import SettingKind
from ostiary.core.settings.kinds.text import Text

E = TypeVar("E", bound=Enum)


@dataclass(frozen=True)
class Flag(SettingKind[bool]):
    @property
    def label(self) -> str:
        return "boolean"

    def read(self, fields: Fields, key: str, directory: Path) -> bool | None:
        return fields.optional_boolean(key)

    def schema(self) -> dict[str, Json]:
        return {"type": "boolean"}

    def blank(self) -> bool:
        return False


@dataclass(frozen=True)
class OneOf(SettingKind[E]):
    """One of the values of an enumeration. With `lenient` an empty text counts as left out."""

    among: type[E]
    mistake: str = "unknown value"
    hint: str = "use one of {}"
    lenient: bool = False

    @property
    def label(self) -> str:
        return ", ".join(f"`{option}`" for option in self._options())

    def _options(self) -> dict[str, E]:
        return {str(option.value): option for option in self.among if option.value != ""}

    def read(self, fields: Fields, key: str, directory: Path) -> E | None:
        text, options = fields.optional_string(key), self._options()
        if text is not None and text not in options and not (text == "" and self.lenient):
            listed = ", ".join(options)
            fields.problem(self.mistake.format(listed), key, self.hint.format(listed) or None)
        return options.get(text or "")

    def schema(self) -> dict[str, Json]:
        return {"enum": list(self._options())}

    def blank(self) -> E:
        return next(iter(self.among))

    def write(self, value: E) -> Json:
        return str(value.value)


@dataclass(frozen=True)
class Word(SettingKind[str]):
    """One of a few texts. `empty` is the error for an empty one; with "" it counts as left out."""

    among: tuple[str, ...]
    mistake: str = "unknown value"
    hint: str = "use one of {}"
    empty: str = "it must not be empty"

    @property
    def label(self) -> str:
        return ", ".join(f"`{option}`" for option in self.among)

    def read(self, fields: Fields, key: str, directory: Path) -> str | None:
        text = Text(self.doc, empty=self.empty).read(fields, key, directory)
        if text is not None and text not in self.among:
            listed = ", ".join(self.among)
            fields.problem(self.mistake.format(listed), key, self.hint.format(listed) or None)
            return None
        return text

    def schema(self) -> dict[str, Json]:
        return {"enum": list(self.among)}

    def blank(self) -> str:
        return self.among[0]
