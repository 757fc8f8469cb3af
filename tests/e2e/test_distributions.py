"""The two distributions as pip installs them: ostiary alone, and ostiary-gateway beside it.

Other libraries are those of the environment that runs the tests, ours come from the wheels.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

from ostiary import __version__
from ostiary.cli import COMMANDS
from ostiary_gateway.cli import COMMANDS as GATEWAY_COMMANDS
from tests.support.wheel import GATEWAY, SECONDS, add, build, install_with_extras

# They have no wheels, so an environment may lack them. No other library may be missing.
WITHOUT_WHEELS = {"gssapi", "ldap"}
# A package that cannot be imported is among the names, though what is in it is not.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names, failed = [package.__name__], {}
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None):
    if not module.name.endswith(".__main__"):
        names.append(module.name)
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        failed[name] = error.name
    except Exception as error:
        failed[name] = repr(error)
ours = {name.partition(".")[0] for name in sys.modules if name.startswith("ostiary")}
print(json.dumps({"names": names, "failed": failed, "ours": sorted(ours)}))
"""
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return {"ostiary": build(folder), "ostiary-gateway": build(folder, project=GATEWAY)}


@pytest.fixture(scope="module")
def alone(wheels: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment without the gateway."""
    return install_with_extras(tmp_path_factory.mktemp("alone") / "venv", wheels["ostiary"])


@pytest.fixture(scope="module")
def both(wheels: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment into which the gateway came later."""
    folder = tmp_path_factory.mktemp("both") / "venv"
    install_with_extras(folder, wheels["ostiary"])
    return add(folder, wheels["ostiary-gateway"])


def run(program: Path, *words: str, folder: Path) -> Done:
    # Nothing of the environment that runs the tests.
    bare = {"PATH": os.defpath, "HOME": str(folder)}
    return subprocess.run(
        [str(program), *words], cwd=folder, env=bare, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def imported(programs: Path, package: str, folder: Path) -> list[str]:
    """The packages of ours that are loaded once every module of *package* has been imported, which must succeed."""
    done = run(programs / "python", "-c", IMPORT_ALL, package, folder=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["names"]) > 50
    absent = {name for name in WITHOUT_WHEELS if importlib.util.find_spec(name) is None}
    failed = {name: why for name, why in told["failed"].items() if why not in absent}
    assert failed == {}
    ours: list[str] = told["ours"]
    return ours


# --- ostiary alone ---


def test_every_module_of_ostiary_needs_nothing_of_the_gateway(alone: Path, tmp_path: Path) -> None:
    found = run(alone / "python", "-c", "import ostiary_gateway", folder=tmp_path)
    assert "No module named 'ostiary_gateway'" in found.stderr
    assert imported(alone, "ostiary", tmp_path) == ["ostiary"]


def test_ostiary_alone_declares_nothing_that_the_gateway_brings(alone: Path, tmp_path: Path) -> None:
    code = (
        "from importlib.metadata import distributions\n"
        "points = [point for each in distributions() for point in each.entry_points]\n"
        "print(sorted({point.group for point in points if point.value.startswith('ostiary')}))"
    )
    assert run(alone / "python", "-c", code, folder=tmp_path).stdout.strip() == "['console_scripts', 'ostiary.key']"


@pytest.mark.parametrize("line", ["--help", "exec explain --help", "registry lint --help", "kubeconfig --help"])
def test_the_commands_of_ostiary_work_without_the_gateway(alone: Path, tmp_path: Path, line: str) -> None:
    done = run(alone / "ostiary", *line.split(), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: ostiary" in done.stdout


def test_every_command_of_ostiary_is_there_without_the_gateway(alone: Path, tmp_path: Path) -> None:
    for command in sorted(COMMANDS.keys() - {"connect"}):
        done = run(alone / "ostiary", command, "--help", folder=tmp_path)
        assert (done.returncode, f"usage: ostiary {command}" in done.stdout) == (0, True), done.stderr


def test_connect_says_which_extra_brings_it(alone: Path, tmp_path: Path) -> None:
    done = run(alone / "ostiary", "connect", "x", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "hint   pip install 'ostiary[connect]'\n" in done.stderr


def test_a_command_of_the_gateway_is_known_to_be_one(alone: Path, tmp_path: Path) -> None:
    done = run(alone / "ostiary", "serve", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ostiary-gateway serve" in done.stderr
    assert not (alone / "ostiary-gateway").exists()


# --- and the gateway ---


def test_every_module_of_the_gateway_can_be_imported(both: Path, tmp_path: Path) -> None:
    assert imported(both, "ostiary_gateway", tmp_path) == ["ostiary", "ostiary_gateway"]


def test_the_gateway_checks_a_configuration(both: Path, tmp_path: Path) -> None:
    done = run(both / "ostiary-gateway", "serve", "--check", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "the built-in configuration: OK\n"), done.stderr
    assert run(both / "python", "-m", "ostiary_gateway", "--version", folder=tmp_path).stdout == (
        f"ostiary-gateway {__version__}\n"
    )


def test_every_command_of_the_gateway_is_there(both: Path, tmp_path: Path) -> None:
    for command in sorted(GATEWAY_COMMANDS):
        done = run(both / "ostiary-gateway", command, "--help", folder=tmp_path)
        assert (done.returncode, f"usage: ostiary-gateway {command}" in done.stdout) == (0, True), done.stderr


def test_connect_is_a_command_of_ostiary_once_the_gateway_is_installed(both: Path, tmp_path: Path) -> None:
    done = run(both / "ostiary", "connect", "--help", folder=tmp_path)
    assert (done.returncode, "usage: ostiary connect" in done.stdout) == (0, True), done.stderr


def test_the_wheels_have_no_file_in_common_and_belong_to_the_same_release(wheels: Mapping[str, Path]) -> None:
    names, needs = [], []
    for wheel in wheels.values():
        with ZipFile(wheel) as content:
            names.append(set(content.namelist()))
            metadata = next(name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
            needs.append(content.read(metadata).decode().splitlines())
    assert names[0].isdisjoint(names[1])
    assert f"Requires-Dist: ostiary-gateway=={__version__}; extra == 'connect'" in needs[0]
    assert f"Requires-Dist: ostiary=={__version__}" in needs[1]
