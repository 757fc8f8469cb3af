"""A disk that is soon full: a tmpfs of a few pages, mounted for one test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.tiers import missing


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """*folder* on a disk of its own, as large as *size* says (``512k``)."""
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        missing("root")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        missing("the right to mount a small tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Filler:
    """A file that takes all the space that is left."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "filler"

    def fill(self) -> None:
        with self._path.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        with self._path.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x")

    def make_room(self) -> None:
        self._path.unlink()
