"""The package as people get it: a wheel, built from this tree and installed into an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 100


def build(folder: Path, *, version: str = "standard", project: Path = ROOT) -> Path:
    """A wheel in *folder*; *version* is hatchling's name for the kind of it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", f"wheel:{version}", "-d", str(folder)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def install(wheel: Path, folder: Path) -> Path:
    """The folder of the programs, in a new environment that has the wheel and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=SECONDS)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True, timeout=SECONDS)
    return folder / "bin"


def install_with_extras(wheel: Path, folder: Path) -> Path:
    """As `install`, with all libraries that the extras name: those of the environment that runs the tests."""
    programs = install(wheel, folder)
    libraries = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # A plain path line: the editable install among those libraries is a .pth file, which is not read from there,
    # so that `import ostiary` finds the wheel.
    (libraries / "libraries-of-the-tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs
