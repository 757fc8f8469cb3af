"""A setting that says for whom or for what a limit is. Used by the admission providers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ostiary.core.config import Fields, Json
from ostiary.core.settings.kinds import SettingKind, Texts


@dataclass(frozen=True)
class Condition(SettingKind[frozenset[str]]):
    """Left out it means everybody; written down and empty, somebody meant nobody, or forgot to fill it in."""

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: Fields, key: str, directory: Path) -> frozenset[str] | None:
        return frozenset(self._texts.read(fields, key, directory) or ())

    @property
    def _texts(self) -> Texts:
        mistake, hint = "an empty list would be met by every request", "leave it out if that is meant"
        return Texts(self.doc, empty_list=mistake, empty_list_hint=hint, unique=True)

    def schema(self) -> dict[str, Json]:
        return self._texts.schema()

    def blank(self) -> frozenset[str]:
        return frozenset()
