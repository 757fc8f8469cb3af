"""docs/explanation/architecture.md names every folder there is, and no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "ostiary"
PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
TREE = PAGE.partition("```\n")[2].partition("```")[0]
WALKS = PAGE.partition("## Which way imports point")[2]


def folders_of_the_package() -> set[str]:
    """Two levels: what is further down is part of the folder above it."""
    folders = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")} - {Path()}
    return {f"{folder.as_posix()}/" for folder in folders if len(folder.parts) <= 2}


def test_the_tree_names_every_folder_with_a_sentence() -> None:
    rows = dict(line.strip().split(maxsplit=1) for line in TREE.splitlines() if line.strip().split()[0].endswith("/"))
    assert rows.keys() == folders_of_the_package()
    assert all(len(sentence.split()) >= 1 for sentence in rows.values())


def test_every_file_and_folder_that_the_journeys_name_exists() -> None:
    names = re.findall(r"`([\w/]+(?:\.py|/))`", WALKS)
    assert len(names) > 40
    missing = [name for name in names if not (ROOT if name.startswith("tests/") else PACKAGE).joinpath(name).exists()]
    assert missing == []


def test_each_journey_is_there() -> None:
    for journey in (
        "A request through the gateway",
        "A 401 in the client",
        "The credentials of an image pull",
        "A login",
        "A revocation reaches an open stream",
    ):
        assert f"\n## {journey}\n" in PAGE
