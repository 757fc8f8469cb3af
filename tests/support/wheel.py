"""The packages as people get them: wheels, built from this tree and installed into an environment of their own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OSTIARY, GATEWAY, SDK = (ROOT / "packages" / name for name in ("ostiary", "ostiary-gateway", "ostiary-provider-sdk"))
SECONDS = 100


def build(folder: Path, *, version: str = "standard", project: Path = OSTIARY) -> Path:
    """A wheel in *folder*; *version* is hatchling's name for the kind of it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", f"wheel:{version}", "-d", str(folder)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    name = str(project_table(project)["name"]).replace("-", "_")
    return next(folder.glob(f"{name}-*.whl"))


def project_table(project: Path) -> dict[str, Any]:
    """The section ``project`` of its pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    return table


def install(folder: Path, *wheels: Path) -> Path:
    """The folder of the programs, in a new environment that has the wheels and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=SECONDS)
    return add(folder, *wheels)


def add(folder: Path, *wheels: Path) -> Path:
    """As `install`, into an environment that is there."""
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    words = ["install", "-q", "--no-deps", "--no-index", *map(str, wheels)]
    subprocess.run([*pip, *words], check=True, timeout=SECONDS)
    return folder / "bin"


def install_with_extras(folder: Path, *wheels: Path) -> Path:
    """As `install`, with all libraries that the extras name: those of the environment that runs the tests."""
    programs = install(folder, *wheels)
    # All but ours, which are editable there: what they declare would be found, though no wheel brings it.
    libraries = folder / "libraries-of-the-tests"
    libraries.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("ostiary", "_editable_impl_ostiary")):
            (libraries / path.name).symlink_to(path)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (own / "libraries-of-the-tests.pth").write_text(f"{libraries}\n")
    return programs
