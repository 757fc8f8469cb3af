"""The settings of the token store ``sqlite``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.settings.kinds import FilePath, Holds


@dataclass(frozen=True, slots=True)
class SqliteSettings:
    path: Annotated[
        Path,
        FilePath(
            "the database file",
            holds=Holds.WRITTEN,
            checked=False,
            empty="",
            missing_hint="name the file, as in: path: ostiary.db",
        ),
    ]
