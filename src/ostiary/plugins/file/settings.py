"""The settings of groups in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.settings.kinds import FilePath, Holds


@dataclass(frozen=True, slots=True)
class FileGroupSettings:
    path: Annotated[
        Path,
        FilePath(
            "a YAML file, each group with the list of its members, named as in the token; read again when it changes",
            holds=Holds.POLICY,
            checked=False,
            empty="",
            missing="it is missing: the file with the groups",
        ),
    ]
