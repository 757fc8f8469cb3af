"""The settings of the authorization provider ``cedar``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary_gateway.settings.kinds import FilePaths, Flag, Holds


@dataclass(frozen=True, slots=True)
class CedarSettings:
    paths: Annotated[
        tuple[Path, ...],
        FilePaths(
            "files or directories with Cedar policies",
            holds=Holds.POLICY,
            missing="cedar needs the files or directories of its policy",
        ),
    ]
    hide: Annotated[
        bool, Flag("answer refused reads within a namespace with 404; requires `authorization.hideDenied`")
    ] = False
