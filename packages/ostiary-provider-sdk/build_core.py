"""Hatchling build hook for `ostiary_provider_sdk._core`: the ostiary modules that an image credential provider needs.

    ostiary.sdk.image_provider  ->  every ostiary module that it imports, at any depth  ->  copies under another name

The other name allows this distribution and ostiary to be installed side by side. A source distribution contains the
copies already.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ENTRY = "ostiary.sdk.image_provider"
TARGET = "ostiary_provider_sdk._core"
_IMPORT = re.compile(r"^(\s*from )ostiary\.", re.MULTILINE)


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = Path(self.root).parent / "ostiary/src"
        self._folder: str | None = None
        if not (source / "ostiary").is_dir():
            return
        self._folder = tempfile.mkdtemp(prefix="ostiary-provider-sdk-")
        core = Path(self._folder) / "_core"
        write_core(source, core)
        build_data["force_include"][str(core)] = TARGET.replace(".", "/")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)


def write_core(source: Path, core: Path) -> None:
    """Copy the modules that `ENTRY` needs from *source* to *core*."""
    for module in needed_modules(source):
        steps = module.split(".")[1:]
        copy = core.joinpath(*steps).with_suffix(".py")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_IMPORT.sub(rf"\1{TARGET}.", _file_of(source, module).read_text("utf-8")), "utf-8")
    for folder in [core, *(path for path in core.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").write_text('"""Copied from ostiary when this distribution was built."""\n')


def needed_modules(source: Path) -> list[str]:
    """Return `ENTRY` and every ostiary module that it imports, directly or indirectly, also inside functions."""
    needed: set[str] = set()
    waiting = [ENTRY]
    while waiting:
        module = waiting.pop()
        if module not in needed:
            needed.add(module)
            waiting += _imports(source, module)
    return sorted(needed)


def _imports(source: Path, module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(_file_of(source, module).read_text("utf-8"))):
        if isinstance(node, ast.Import) and any(name.name.partition(".")[0] == "ostiary" for name in node.names):
            raise ValueError(f"{module}: write from ostiary... import, which is what is renamed in a copy")
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ostiary."):
            yield str(node.module)


def _file_of(source: Path, module: str) -> Path:
    file = source.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file():
        # The __init__ of a package would add everything that it imports.
        raise ValueError(f"{module} is a package: import from the module that has the name")
    return file
