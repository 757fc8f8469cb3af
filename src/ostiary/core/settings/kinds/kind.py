"""What every kind of setting is: how a value is read and checked, described in JSON Schema, and written."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Generic, Self, TypeVar, cast

from ostiary.core.config import Fields, Json

T = TypeVar("T")


@dataclass(frozen=True)
class SettingKind(Generic[T]):
    """What a declaration says of one setting besides its type and its default.

    `doc` is one line for the reference and for editors. `name` is its name in the file, where that is not the
    attribute's in camel case. `unset` says what holds if it is left out, where no default can be shown. `missing` is
    the error for a required setting that is absent. `reload` False: a change needs a restart.
    """

    doc: str
    _: KW_ONLY
    name: str = ""
    unset: str = ""
    missing: str = "it is missing"
    missing_hint: str | None = None
    reload: bool = True

    @property
    @abstractmethod
    def label(self) -> str:
        """What the reference calls a value of this kind."""

    @abstractmethod
    def read(self, fields: Fields, key: str, directory: Path) -> T | None:
        """The value under *key*; None if there is none, or a mistaken one, which is then noted in *fields*."""

    @abstractmethod
    def schema(self) -> dict[str, Json]:
        """What JSON Schema can say of a value."""

    @abstractmethod
    def blank(self) -> T:
        """In place of a required value that is missing. Never used: with a problem noted, nothing is started."""

    def of_setting(self, name: str) -> Self:
        """The kind for a setting that has this name in the file, for a kind that depends on it."""
        return self

    def write(self, value: T) -> Json:
        """*value* as it stands in a file; None if it cannot be shown."""
        return cast("Json", value)

    def must_be_written(self, *, is_required: bool) -> bool:
        """Whether the file is wrong without it."""
        return is_required
