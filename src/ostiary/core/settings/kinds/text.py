"""Settings that are one text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ostiary.core.config import Fields, Json
from ostiary.core.settings.kinds.kind import SettingKind

T = TypeVar("T")


@dataclass(frozen=True)
class Text(SettingKind[str]):
    """A text that is not empty, of the given `pattern`.

    `empty` is the error for an empty one; with "" it counts as left out.
    """

    pattern: str = ""
    mistake: str = ""
    hint: str | None = None
    empty: str = "it must not be empty"
    empty_hint: str | None = None

    @property
    def label(self) -> str:
        return "text"

    def read(self, fields: Fields, key: str, directory: Path) -> str | None:
        text = fields.optional_string(key)
        if text == "" and self.empty:
            fields.problem(self.empty, key, self.empty_hint)
        if text and self.pattern and not re.fullmatch(self.pattern, text):
            fields.problem(self.mistake, key, self.hint)
            return None
        return text or None

    def schema(self) -> dict[str, Json]:
        return {"type": "string", **({"pattern": f"^({self.pattern})$"} if self.pattern else {"minLength": 1})}

    def blank(self) -> str:
        return ""


def header_name(doc: str) -> Text:
    """The name of an HTTP header. No underscore: some servers take it for a dash, and then two headers are one."""
    return Text(doc, pattern="[A-Za-z0-9-]+", mistake="it is not a header name of letters, digits and dashes")


@dataclass(frozen=True)
class AnyText(Text):
    """A text that may be empty."""

    def read(self, fields: Fields, key: str, directory: Path) -> str | None:
        return fields.optional_string(key)

    def schema(self) -> dict[str, Json]:
        return {"type": "string"}


@dataclass(frozen=True)
class Constant(SettingKind[str]):
    """A text that is always the same; left out, it is wrong as well."""

    value: str

    @property
    def label(self) -> str:
        return f"`{self.value}`"

    def read(self, fields: Fields, key: str, directory: Path) -> str | None:
        if fields.string(key) != self.value and fields.is_right(key):
            fields.problem(f"it must be {self.value}", key)
        return self.value

    def schema(self) -> dict[str, Json]:
        return {"const": self.value}

    def blank(self) -> str:
        return self.value


@dataclass(frozen=True)
class Parsed(SettingKind[T]):
    """A text that `parse` makes a value of; it raises `ValueError` with what is wrong."""

    parse: Callable[[str], T]
    pattern: str = ""
    hint: str | None = None
    kind: str = "text"

    @property
    def label(self) -> str:
        return self.kind

    def read(self, fields: Fields, key: str, directory: Path) -> T | None:
        text = fields.optional_string(key)
        if text == "":
            fields.problem("it must not be empty", key)
        if not text:
            return None
        try:
            return self.parse(text)
        except ValueError as mistake:
            fields.problem(str(mistake), key, self.hint)
            return None

    def schema(self) -> dict[str, Json]:
        return {"type": "string", **({"pattern": self.pattern} if self.pattern else {"minLength": 1})}

    def blank(self) -> T:
        raise AssertionError("a parsed setting has a default")

    def write(self, value: T) -> Json:
        return str(value)
