"""docs/explanation/architecture.md names every folder there is, and no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "ostiary": ROOT / "packages/ostiary/src/ostiary",
    "ostiary_gateway": ROOT / "packages/ostiary-gateway/src/ostiary_gateway",
}
PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
WALKS = PAGE.partition("## Which way imports point")[2]


def tree(name: str) -> str:
    """What the page lists of one import package."""
    return PAGE.partition(f"\n## The tree of {name}\n")[2].partition("```\n")[2].partition("```")[0]


def folders_of(package: Path) -> set[str]:
    """Two levels: what is further down is part of the folder above it."""
    folders = {path.parent.relative_to(package) for path in package.rglob("__init__.py")} - {Path()}
    return {f"{folder.as_posix()}/" for folder in folders if len(folder.parts) <= 2}


def place(name: str) -> Path:
    """Where a file or folder is that the page names."""
    package, _, rest = name.partition("/")
    return PACKAGES[package] / rest if package in PACKAGES else ROOT / name


@pytest.mark.parametrize("name", PACKAGES)
def test_the_tree_names_every_folder_with_a_sentence(name: str) -> None:
    lines = [line.split(maxsplit=1) for line in tree(name).splitlines()]
    rows = {words[0]: words[1:] for words in lines if words[0].endswith("/")}
    assert rows.keys() == folders_of(PACKAGES[name])
    assert all(rows.values())


def test_every_file_and_folder_that_the_journeys_name_exists() -> None:
    names = [name for name in re.findall(r"`([\w/]+(?:\.py|/))`", WALKS) if "/" in name.rstrip("/")]
    assert len(names) > 40
    assert [name for name in names if not place(name).exists()] == []


def test_each_journey_is_there() -> None:
    for journey in (
        "A request through the gateway",
        "A 401 in the client",
        "The credentials of an image pull",
        "A login",
        "A revocation reaches an open stream",
    ):
        assert f"\n## {journey}\n" in PAGE
