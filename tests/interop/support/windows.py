"""A real Python for Windows, which Wine runs, with ostiary installed by pip from its wheel for Windows.

    windows.python("-c", "print(1)")
    windows.run("ostiary.exe", "--version")

Wine stands in for Windows here: files, locks, pipes, jobs, processes and OpenSSL are called as on Windows, and the
network is that of this machine. Access lists are kept as modes of this system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop.support.programs import WINDOWS, program_of
from tests.support.wheel import build

SECONDS = 120.0


@dataclass(frozen=True)
class Windows:
    """One drive C, one profile. `site` has ostiary and what it needs, `scripts` what pip makes of its entry points."""

    home: Path
    folder: Path

    @property
    def site(self) -> Path:
        return self.folder / "environment" / "Lib" / "site-packages"

    @property
    def scripts(self) -> Path:
        return self.folder / "environment" / "Scripts"

    @property
    def state(self) -> Path:
        """Where ostiary keeps credentials."""
        (profile,) = (self.folder / "prefix" / "drive_c" / "users").glob("*/AppData/Local/ostiary")
        return profile

    def python(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.home / "python.exe"), *words, **environment)

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["wine", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=self.environment(**environment),
        )
        assert done.returncode >= 0, done.stderr
        return done

    def environment(self, **more: str) -> dict[str, str]:
        # An empty DISPLAY: Wine opens no windows, and waits for no screen.
        own = {
            "WINEPREFIX": str(self.folder / "prefix"),
            "WINEDEBUG": "-all",
            "DISPLAY": "",
            "WINEPATH": path(self.scripts),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), **own, **more}

    def install(self, wheel: Path) -> None:
        """By pip, as people do, and without an index."""
        self.python("-m", "venv", "--without-pip", path(self.folder / "environment"))
        wheels = path(self.home / "wheels")
        pip = [
            "-m",
            "pip",
            "--python",
            path(self.scripts / "python.exe"),
            "--disable-pip-version-check",
            "install",
            "-q",
        ]
        done = self.python(*pip, "--no-index", "--find-links", wheels, "--no-compile", path(wheel), "httpx", "sniffio")
        assert done.returncode == 0, done.stderr


def path(file: Path) -> str:
    """The name of *file* for Windows programs: this system is their drive Z."""
    return "Z:" + str(file).replace("/", "\\")


@contextmanager
def running_windows(folder: Path) -> Iterator[Windows]:
    """Skips the tests, and says why, where this machine has none."""
    python = program_of(WINDOWS, "python.exe")
    # What is made on drive C must not stay there. Most of it are files of Wine itself, which are only linked.
    shutil.copytree(python.parent / "prefix", folder / "prefix", symlinks=True, copy_function=_link)
    windows = Windows(python.parent, folder)
    os.environ["OSTIARY_WHEEL_PLATFORM"] = "win_amd64"
    try:
        wheel = build(folder / "wheel")
    finally:
        del os.environ["OSTIARY_WHEEL_PLATFORM"]
    windows.install(wheel)
    try:
        yield windows
    finally:
        subprocess.run(["wineserver", "-k"], env=windows.environment(), check=False, timeout=SECONDS)


def _link(source: str, target: str) -> str:
    # The registry is written to.
    if source.endswith(".reg"):
        return str(shutil.copy2(source, target))
    os.link(source, target)
    return target
