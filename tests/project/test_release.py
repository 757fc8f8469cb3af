"""What is published reads well elsewhere: the README on a page of its own, versions that are said are tested."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ostiary
from packages.ostiary.hatch_launcher import ENTRY_POINTS, windows_platform
from scripts.hatch_metadata import absolute_links
from tests.support.wheel import build

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "packages"
DISTRIBUTIONS = ("ostiary", "ostiary-gateway")
SDK = "ostiary-provider-sdk"
README = (ROOT / "README.md").read_text()
HOME = "https://forge.example/acme/ostiary"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)]+)\)")


def test_without_a_public_home_the_readme_stays_as_it_is() -> None:
    assert absolute_links(README, home="", tag="v1") == README


def test_no_relative_link_is_left_and_each_leads_to_a_file_of_the_release() -> None:
    targets = LINK.findall(absolute_links(README, home=HOME, tag="v1"))
    before = LINK.findall(README)
    assert len(targets) == len(before) > 10
    for target, relative in zip(targets, before, strict=True):
        if not relative.startswith(("http", "#")):
            kind, tag, path = target.removeprefix(f"{HOME}/").split("/", 2)
            assert (kind, tag) == ("raw" if path.endswith((".png", ".svg")) else "blob", "v1")
            assert (ROOT / path.partition("#")[0]).exists()


@given(st.from_regex(r"[a-z]{1,8}(/[a-z.]{1,8}){0,3}(#[a-z]{1,4})?", fullmatch=True), st.sampled_from(["", "!"]))
def test_only_the_target_of_a_link_changes(path: str, image: str) -> None:
    line = f"see {image}[a (b)]({path})"
    kind = "raw" if image else "blob"
    assert absolute_links(line, home=HOME, tag="v1") == f"see {image}[a (b)]({HOME}/{kind}/v1/{path})"
    for elsewhere in ("https://a.example/b", "mailto:a@b.example", "#below"):
        assert absolute_links(f"[a]({elsewhere})", home=HOME, tag="v1") == f"[a]({elsewhere})"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the two distributions are built from, without most of the source."""
    tree = tmp_path / "tree"
    for name in ("README.md", "scripts/hatch_metadata.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for name in DISTRIBUTIONS:
        shutil.copytree(PACKAGES / name, tree / "packages" / name, symlinks=True, ignore=_most_of_the_source)
    return tree


def _most_of_the_source(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder).parent.name == "src" and name != "__init__.py"]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_built_with_a_home_carries_it(name: str, tree: Path, tmp_path: Path) -> None:
    project = tree / "packages" / name / "pyproject.toml"
    project.write_text(project.read_text().replace('home = ""', f'home = "{HOME}"'))
    metadata = _metadata(build(tmp_path, project=project.parent))
    assert f"Project-URL: Source, {HOME}\n" in metadata
    assert all(target.startswith(("http", "#")) for target in LINK.findall(metadata))


def _metadata(wheel: Path) -> str:
    with ZipFile(wheel) as content:
        return content.read(next(name for name in content.namelist() if name.endswith("METADATA"))).decode()


def test_all_distributions_have_the_same_version() -> None:
    (version,) = {_project(name)["version"] for name in (*DISTRIBUTIONS, SDK)}
    # One is always installed with the other of its own version.
    assert f"ostiary=={version}" in _project("ostiary-gateway")["dependencies"]
    assert _project("ostiary")["optional-dependencies"]["connect"] == [f"ostiary-gateway=={version}"]
    assert ostiary.__version__ == version


def test_both_distributions_have_the_same_home() -> None:
    hooks = [_pyproject(name)["tool"]["hatch"]["metadata"]["hooks"]["custom"] for name in DISTRIBUTIONS]
    assert hooks[0] == hooks[1]


def _pyproject(name: str) -> dict[str, Any]:
    return tomllib.loads((PACKAGES / name / "pyproject.toml").read_text())


def _project(name: str) -> dict[str, Any]:
    project: dict[str, Any] = _pyproject(name)["project"]
    return project


@pytest.mark.parametrize("name", [*DISTRIBUTIONS, SDK])
def test_every_distribution_has_the_license(name: str) -> None:
    license_file = PACKAGES / name / "LICENSE"
    # A link would be one in the source archive, too, and lead nowhere there.
    assert not license_file.is_symlink()
    assert license_file.read_text() == (ROOT / "LICENSE").read_text()
    assert _project(name)["license"] == "Apache-2.0"


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_source_archive_builds_the_wheel_that_the_tree_builds(name: str, tree: Path, tmp_path: Path) -> None:
    project = tree / "packages" / name
    of_tree = build(tmp_path / "of tree", project=project)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=100)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        assert [member.name for member in archive if not member.isfile()] == []
        # Debian's Python 3.11 has no `filter` yet. It is our own archive, of plain files.
        archive.extractall(tmp_path / "archive")
    of_archive = build(tmp_path / "of archive", project=next((tmp_path / "archive").iterdir()))
    assert of_archive.name == of_tree.name
    assert _files(of_archive) == _files(of_tree)
    assert any(file.endswith("/LICENSE") for file in _files(of_tree))


def _files(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as content:
        return {file: content.read(file) for file in content.namelist()}


def test_the_changelog_has_a_section_for_this_version() -> None:
    version = _project("ostiary")["version"]
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("environ", "building_on", "platform"),
    [
        ({}, "linux-x86_64", None),
        ({}, "macosx-14.0-arm64", None),
        ({}, "win-amd64", "win_amd64"),
        ({}, "win-arm64", "win_arm64"),
        ({"OSTIARY_WHEEL_PLATFORM": "win_arm64"}, "linux-x86_64", "win_arm64"),
    ],
)
def test_a_wheel_is_for_windows_where_it_is_built_there_or_asked_for(
    environ: dict[str, str], building_on: str, platform: str | None
) -> None:
    assert windows_platform(environ, building_on) == platform


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(ValueError, match="OSTIARY_WHEEL_PLATFORM"):
        windows_platform({"OSTIARY_WHEEL_PLATFORM": "windows"}, "linux-x86_64")


@pytest.mark.parametrize("platform", ["any", "win_amd64"])
def test_each_wheel_has_the_program_in_one_form(platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform != "any":
        monkeypatch.setenv("OSTIARY_WHEEL_PLATFORM", platform)
    wheel = build(tmp_path, project=PACKAGES / "ostiary")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    with ZipFile(wheel) as content:
        entry_points = content.read(next(name for name in content.namelist() if name.endswith("entry_points.txt")))
        scripts = [name for name in content.namelist() if ".data/scripts/" in name]
    for program, entry_point in ENTRY_POINTS.items():
        assert (f"\n{program} = {entry_point}\n".encode() in entry_points) == (platform != "any")
    assert {name.rpartition("/")[2] for name in scripts} == (set(ENTRY_POINTS) if platform == "any" else set())
