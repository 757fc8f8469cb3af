"""npm packages that tests use, each with a lock file of its own. ``scripts/components`` installs them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.tiers import missing

ROOT = Path(__file__).parents[2]
SOURCES = tuple(path.parent for path in sorted(Path(__file__).parent.rglob("package-lock.json")))
INSTALLED = ROOT / ".venv" / "npm"


def installed(source: Path) -> Path:
    """The folder with the files of *source* and their packages."""
    folder = _folder(source)
    if not folder.exists():
        missing(f"npm packages of {source.relative_to(ROOT)}")
    return folder


def _folder(source: Path) -> Path:
    content = b"".join(path.read_bytes() for path in sorted(source.iterdir()) if path.is_file())
    return INSTALLED / f"{source.name}-{hashlib.sha256(content).hexdigest()[:16]}"


def main() -> None:
    for source in SOURCES:
        folder = _folder(source)
        if folder.exists():
            continue
        print(f"components: npm packages of {source.relative_to(ROOT)}", flush=True)
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(source, unfinished)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        if subprocess.run(command, cwd=unfinished, stdout=subprocess.DEVNULL).returncode != 0:
            sys.exit(f"components: npm ci failed in {unfinished}")
        unfinished.rename(folder)


if __name__ == "__main__":
    main()
