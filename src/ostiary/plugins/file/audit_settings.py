"""The settings of an audit log in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.settings.kinds import FilePath, Flag, Holds


@dataclass(frozen=True, slots=True)
class FileAuditSettings:
    path: Annotated[Path, FilePath("a file to append to; its directory must exist", holds=Holds.WRITTEN)]
    fsync: Annotated[bool, Flag("every write waits for the disk")] = False
