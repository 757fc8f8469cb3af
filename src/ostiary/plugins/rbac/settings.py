"""The settings of the authorization provider ``rbac``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.settings.kinds import FilePaths, Flag, Holds


@dataclass(frozen=True, slots=True)
class RbacSettings:
    paths: Annotated[
        tuple[Path, ...],
        FilePaths(
            "files or directories with Role, RoleBinding, ClusterRole, ClusterRoleBinding",
            holds=Holds.POLICY,
            missing="rbac needs the files or directories of its policy",
        ),
    ]
    defaults: Annotated[bool, Flag("whether Kubernetes' own roles and bindings are there as well")] = True
    watch: Annotated[bool, Flag("whether changed files are read again")] = True
