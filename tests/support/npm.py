"""Programs that need packages of npm: installed once, under the lock file beside them, into pytest's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

INSTALL_SECONDS = 300


def installed(config: pytest.Config, source: Path, *, what: str) -> Path:
    """A folder with the files of *source* and their packages. *what* names it where it cannot be had."""
    assert config.cache is not None
    content = b"".join(path.read_bytes() for path in sorted(source.iterdir()) if path.is_file())
    folder = Path(config.cache.mkdir(f"{source.name}-{hashlib.sha256(content).hexdigest()[:16]}"))
    with (folder / "lock").open("w") as lock:
        # Several processes of one test run come here at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.copytree(source, folder, dirs_exist_ok=True)
            _install_packages(folder, what)
            (folder / "complete").touch()
    return folder


def _install_packages(folder: Path, what: str) -> None:
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if done.returncode != 0:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing(f"{what} cannot be installed: {done.stderr[-500:]}")
