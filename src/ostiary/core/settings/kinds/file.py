"""Settings that name files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ostiary.core.config import Fields, Json
from ostiary.core.settings.kinds.kind import SettingKind
from ostiary.core.settings.kinds.listed import Names
from ostiary.core.settings.kinds.text import Text


class Holds(Enum):
    """What is in a file that a setting names, so that ``--check`` knows what to look at."""

    ANYTHING = "anything"
    CERTIFICATES = "certificates"
    SECRET = "secret"  # noqa: S105  # no password
    POLICY = "policy"  # who somebody is, and what they may do
    WRITTEN = "written"  # by us; it may not exist yet


@dataclass(frozen=True)
class FilePath(SettingKind[Path]):
    """A file, or a directory; a relative path is meant from the directory of the configuration.

    With `checked` it must be possible to read it at this moment; one that is WRITTEN may not exist yet, but its
    directory must. `empty` is the error for an empty text; with "" it counts as left out.
    """

    holds: Holds = Holds.ANYTHING
    checked: bool = True
    empty: str = "it must not be empty"

    @property
    def label(self) -> str:
        return "file"

    def read(self, fields: Fields, key: str, directory: Path) -> Path | None:
        text = Text(self.doc, empty=self.empty).read(fields, key, directory)
        if text is None:
            return None
        path = directory / Path(text).expanduser()
        if self.checked and (mistake := self._mistake(path)):
            fields.problem(mistake, key)
        return path

    def _mistake(self, path: Path) -> str | None:
        if self.holds is Holds.WRITTEN:
            return None if path.parent.is_dir() else "the directory of the file does not exist"
        reason = unreadable(path)
        return f"the file cannot be read: {reason}" if reason else None

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "minLength": 1}

    def blank(self) -> Path:
        return Path()

    def write(self, value: Path) -> Json:
        return str(value)


@dataclass(frozen=True)
class FilePaths(SettingKind[tuple[Path, ...]]):
    """A list of files or directories."""

    holds: Holds = Holds.ANYTHING

    @property
    def label(self) -> str:
        return "list of files"

    def read(self, fields: Fields, key: str, directory: Path) -> tuple[Path, ...] | None:
        paths = tuple(directory / Path(text).expanduser() for text in fields.strings(key))
        return paths or None

    def schema(self) -> dict[str, Json]:
        return Names(self.doc, least=1).schema()

    def blank(self) -> tuple[Path, ...]:
        return ()

    def write(self, value: tuple[Path, ...]) -> Json:
        return [str(path) for path in value]


def unreadable(path: Path) -> str | None:
    """Why a file cannot be read; None if it can."""
    try:
        if path.is_dir():
            return "it is a directory"
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
    return None
