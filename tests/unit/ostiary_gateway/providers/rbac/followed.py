"""Files with bindings, and what of them is in force."""

from __future__ import annotations

import os
from pathlib import Path

from ostiary_gateway.providers.rbac.file_follow import FollowedFiles
from tests.unit.ostiary_gateway.providers.rbac.policies import HEADER

BINDING = (
    HEADER
    + "kind: ClusterRoleBinding\nmetadata:\n  name: {0}\nroleRef:\n  kind: ClusterRole\n  name: view\n"
    + "subjects:\n- kind: User\n  name: {1}\n"
)


def write(path: Path, **users: str) -> None:
    """Bindings by name, each for one user. The file looks as if it had been written long ago."""
    path.write_text("---\n".join(BINDING.format(name, user) for name, user in users.items()))
    age = 1_000_000_000 + sum(map(ord, path.read_text()))
    os.utime(path, (age, age))


def follow(directory: Path) -> FollowedFiles:
    return FollowedFiles([directory], defaults=False, watch=False)


def in_force(files: FollowedFiles) -> dict[str, str]:
    return {binding.name: binding.subjects[0].name for binding in files.policy.index.bindings}
