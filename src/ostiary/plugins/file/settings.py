"""The settings of what is kept in a file: groups, and the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.settings.kinds import FilePath, Flag, Holds


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


@dataclass(frozen=True, slots=True)
class FileAuditSettings:
    path: Annotated[Path, FilePath("a file to append to; its directory must exist", holds=Holds.WRITTEN)]
    fsync: Annotated[bool, Flag("every write waits for the disk")] = False
