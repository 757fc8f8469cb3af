"""How programs that must start quickly get into a wheel. Called by hatchling for every wheel, editable ones included.

    py3-none-any         the scripts of bin, which start without what pip's entry points import (decision 0019)
    py3-none-win_amd64   entry points: Windows runs no script of sh, and pip makes an .exe of each
    py3-none-win_arm64

A wheel has the second form when it is built on Windows, or when ``OSTIARY_WHEEL_PLATFORM`` names the platform:

    OSTIARY_WHEEL_PLATFORM=win_amd64 python -m build --wheel

pip prefers a wheel for its own platform to one for any, so both are published side by side. One wheel cannot have both
forms: on POSIX a script and its entry point would be the same file.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Where each program begins; its script has its name.
ENTRY_POINTS = {
    "ostiary": "ostiary.cli:main",
    "docker-credential-ostiary": "ostiary.registry.docker_helper:main",
    "ostiary-credential-provider": "ostiary.registry.kubelet.program:main",
}
VARIABLE = "OSTIARY_WHEEL_PLATFORM"
PLATFORMS = ("win_amd64", "win_arm64")


class Launcher(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        platform = windows_platform(os.environ, sysconfig.get_platform())
        if platform is None:
            build_data["shared_scripts"].update({f"bin/{program}": program for program in ENTRY_POINTS})
            return
        # The object that the builder writes entry_points.txt from.
        self.metadata.core.scripts.update(ENTRY_POINTS)
        if version != "editable":
            build_data["tag"] = f"py3-none-{platform}"


def windows_platform(environ: Mapping[str, str], building_on: str) -> str | None:
    """The tag of the Windows that the wheel is for; None for a wheel that is for every other system."""
    platform = environ.get(VARIABLE) or building_on.replace("-", "_")
    if platform in PLATFORMS:
        return platform
    if VARIABLE in environ:
        raise ValueError(f"{VARIABLE} is one of {', '.join(PLATFORMS)}, and not {platform!r}")
    return "win_amd64" if platform.startswith("win") else None
