"""Settings that are a list of texts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ostiary.core.config import Fields, Json
from ostiary.core.settings.kinds.kind import SettingKind


@dataclass(frozen=True)
class Texts(SettingKind[tuple[str, ...]]):
    """A list of texts of the given `pattern`. With `least` 1, an empty list counts as left out.

    `empty` is the error for an empty text among them, `repeated` that for one that stands there twice, `empty_list`
    that for a list without texts; with "" they are let pass. An editor marks repeated ones anyway if `unique` is set.
    """

    pattern: str = ""
    mistake: str = ""
    hint: str | None = None
    least: int = 0
    empty: str = ""
    empty_hint: str | None = None
    repeated: str = ""
    unique: bool = False
    empty_list: str = ""
    empty_list_hint: str | None = None

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: Fields, key: str, directory: Path) -> tuple[str, ...] | None:
        texts = fields.strings(key)
        if "" in texts and self.empty:
            fields.problem(self.empty, key, self.empty_hint)
        if len(set(texts)) < len(texts) and self.repeated:
            fields.problem(self.repeated, key)
        for text in texts:
            if text and self.pattern and not re.fullmatch(self.pattern, text):
                fields.problem(self.mistake, key, self.hint)
        if not texts and self.empty_list and key in fields and fields.is_right(key):
            fields.problem(self.empty_list, key, self.empty_list_hint)
        return texts if texts or (key in fields and not self.least and not self.empty_list) else None

    def schema(self) -> dict[str, Json]:
        item: dict[str, Json] = {"pattern": f"^({self.pattern})$"} if self.pattern else {"minLength": 1}
        schema: dict[str, Json] = {"type": "array", "items": {"type": "string", **item}}
        if self.least or self.empty_list:
            schema["minItems"] = 1
        if self.unique or self.repeated:
            schema["uniqueItems"] = True
        return schema

    def blank(self) -> tuple[str, ...]:
        return ()

    def write(self, value: Iterable[str]) -> Json:
        return list(value)


@dataclass(frozen=True)
class Names(Texts):
    """A list without empty and repeated texts: a filter with an empty one would let through who knows what."""

    empty: str = "empty entry in the list"
    empty_hint: str | None = "remove it, or fill it in"
    repeated: str = "duplicate entry in the list"


@dataclass(frozen=True)
class NameSet(SettingKind[frozenset[str]]):
    """The same, where the order means nothing; `always` are in it, whatever is written."""

    always: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: Fields, key: str, directory: Path) -> frozenset[str] | None:
        return frozenset(Names(self.doc).read(fields, key, directory) or ()) | self.always

    def schema(self) -> dict[str, Json]:
        return Names(self.doc).schema()

    def blank(self) -> frozenset[str]:
        return self.always

    def write(self, value: frozenset[str]) -> Json:
        return list[Json](sorted(value))
