"""The layout shows the architecture: imports point one way, and the public names are the listed ones."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ostiary

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "ostiary"

# What each part may import of ours, besides itself. A part that is not listed here fails the test.
MAY_IMPORT = {
    "model": set(),
    "errors": {"model"},
    "interfaces": {"model", "errors"},
    "core": {"interfaces", "model", "errors"},
    "wire": {"core", "interfaces", "model", "errors"},
    "registry": {"core", "wire", "model", "errors"},
    "client": {"core", "wire", "model", "errors"},
    "plugin": {"core", "wire", "model", "errors"},
    "gateway": {"core", "wire", "interfaces", "model", "errors"},
    "testing": {"core", "wire", "interfaces", "model", "errors"},
    "plugins": {"core", "wire", "interfaces", "plugin", "model", "errors"},
    "cli": {"client", "registry", "gateway", "plugin", "core", "wire", "interfaces", "model", "errors"},
    "__main__": {"cli"},
    "__init__": {"client", "model", "errors"},
}


def modules() -> Iterator[Path]:
    return PACKAGE.rglob("*.py")


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_parts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "ostiary"
                else [node.module or ""]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("ostiary."):
                yield name.split(".")[1]


@pytest.mark.parametrize("path", list(modules()), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    allowed = MAY_IMPORT[part] | {part}
    if path == PACKAGE / "__init__.py":
        allowed = MAY_IMPORT["__init__"]
    found = set(imported_parts(path)) - {"__version__"}
    assert found <= allowed, f"{part} may not import {sorted(found - allowed)}"


def test_only_core_process_starts_processes() -> None:
    users = [
        path.relative_to(PACKAGE)
        for path in modules()
        if any(f"import {name}" in path.read_text() for name in ("subprocess", "pty", "multiprocessing"))
    ]
    assert users == [Path("core/process.py")]


def test_every_public_name_can_be_had_and_no_other_is_promised() -> None:
    for name in ostiary.__all__:
        assert getattr(ostiary, name) is not None
    assert set(ostiary.__all__) == set(ostiary._MODULE_OF)


def test_importing_ostiary_imports_nothing_else() -> None:
    """The cost of ``import ostiary`` is the cost of reading one small file."""
    script = "import sys; before = set(sys.modules); import ostiary; print(*sorted(set(sys.modules) - before))"
    shown = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout
    assert set(shown.split()) <= {
        "ostiary",
        "__future__",
        "typing",
        "collections",
        "functools",
        "operator",
        "re",
    } | set(
        subprocess.run(
            [sys.executable, "-I", "-c", "import sys, typing, __future__; print(*sys.modules)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    )
