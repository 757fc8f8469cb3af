"""The settings of the authorization provider ``abac``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.settings.kinds import FilePaths, Holds


@dataclass(frozen=True, slots=True)
class AbacSettings:
    paths: Annotated[
        tuple[Path, ...],
        FilePaths(
            "files or directories, one JSON object per line",
            holds=Holds.POLICY,
            missing="abac needs the files or directories of its policy",
        ),
    ]
