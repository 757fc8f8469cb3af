"""``scripts/house``, run on a tree of two packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "house"
NINE = ", ".join(f"p{number}" for number in range(9))
FIFTEEN = "\n".join(f"    f{number}: int = 0" for number in range(15))
FILES = {
    "packages/client/src/ours/__init__.py": "",
    "packages/client/src/ours/rows.py": (
        "from typing import Any\nRow = list[Any]\ndef first(row: Row) -> int:\n    return row[0]  # type: ignore\n"
    ),
    "packages/client/src/ours/bag.py": f"from dataclasses import dataclass\n\n@dataclass\nclass Bag:\n{FIFTEEN}\n",
    "packages/server/src/ours_server/__init__.py": "",
    "packages/server/src/ours_server/app.py": (
        "from ours.bag import Bag\nfrom ours_server import db\n"
        f"class App:\n    def __init__(self, {NINE}) -> None: ...\n"
        "class Other:\n    def __init__(self, bag: Bag) -> None: ...\n"
    ),
    "packages/server/src/ours_server/db.py": "def app():\n    from ours_server.app import App\n    return App\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    return tmp_path


def house(tree: Path, *arguments: str) -> list[str]:
    command = [sys.executable, str(tree / "scripts/house"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_figures_cover_all_packages(tree: Path) -> None:
    figures = {name: value for name, value, *_ in map(str.split, house(tree))}
    assert figures["modules"] == "6"
    assert figures["folders"] == "2"
    counted = {"sole-importer": "3", "fan-out": "0", "cycles": "1", "constructors": "1", "bags": "1", "untyped": "3"}
    assert counted.items() <= figures.items()


def test_the_places_of_a_figure_are_listed(tree: Path) -> None:
    assert house(tree, "--list", "constructors") == ["9 packages/server/src/ours_server/app.py:4 App"]
    assert house(tree, "--list", "bags") == ["15 packages/client/src/ours/bag.py:4 Bag"]
    assert house(tree, "--list", "untyped") == [
        "packages/client/src/ours/rows.py:2 Any",
        "packages/client/src/ours/rows.py:3 Row",
        "packages/client/src/ours/rows.py:4 type: ignore",
    ]
    assert "ours_server.app <- ours_server.db" in house(tree, "--list", "cycles")[0]
