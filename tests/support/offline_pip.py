"""``pip install`` for readers of the docs: says whether it would succeed, from what is installed, without an index.

The package is not published where tests run, so nothing can be downloaded. What a page can get wrong is still found:
an extra that the package does not have, a library that an extra does not bring, an option that pip does not know.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from packaging.requirements import Requirement

_SCRIPT = """#!/bin/sh
exec python3 -c 'import sys; sys.path.append("{root}"); from tests.support.offline_pip import main; main()' "$@"
"""


def write(folder: Path) -> Path:
    """The program ``pip``, in *folder*; runs with the ``python3`` that is on the PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "pip"
    program.write_text(_SCRIPT.format(root=Path(__file__).parents[2]))
    program.chmod(0o755)
    return folder


def main() -> None:
    command, *words = sys.argv[1:]
    if command != "install":
        sys.exit(f"pip {command}: not expected in a page")
    names = [word for word in words if not word.startswith("-") and word != "."]
    problems = [problem for name in names for problem in problems_of(Requirement(name))]
    if "." in words:
        declare(Path("pyproject.toml"))
    sys.exit("\n".join(problems) or 0)


def declare(pyproject: Path) -> None:
    """What an editable install leaves for others to find, beside the project: its name and its entry points."""
    project = tomllib.loads(pyproject.read_text())["project"]
    info = pyproject.parent / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(groups))


def problems_of(requirement: Requirement) -> list[str]:
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return [f"{requirement.name} is not installed"]
    if not requirement.specifier.contains(installed, prereleases=True):
        return [f"{requirement} is not satisfied by {installed}"]
    metadata = distribution(requirement.name)
    known = metadata.metadata.get_all("Provides-Extra") or []
    problems = [f"{requirement.name} has no extra {extra}" for extra in requirement.extras if extra not in known]
    for line in metadata.requires or []:
        needed = Requirement(line)
        for extra in requirement.extras:
            if needed.marker is not None and needed.marker.evaluate({"extra": extra}) and "extra" in str(needed.marker):
                problems += problems_of(needed)
    return problems
