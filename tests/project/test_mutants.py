"""``scripts/mutants``, run on packages of one module."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "mutants"
PLACE = "packages/ostiary-gateway/src/ostiary_gateway/limits.py:3"
MODULE = """
def is_allowed(number):
    return number < 3
"""
GOOD_TEST = """
from ostiary_gateway.limits import is_allowed

def test_the_limit():
    assert is_allowed(2)
    assert not is_allowed(3)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The module is imported before any test is: by ``conftest.py``, and by every other module through its package."""
    for name, content in {
        "packages/ostiary/src/ostiary/__init__.py": "",
        "packages/ostiary/src/ostiary/other.py": "",
        "packages/ostiary-gateway/src/ostiary_gateway/__init__.py": "from ostiary_gateway.limits import is_allowed",
        "packages/ostiary-gateway/src/ostiary_gateway/limits.py": MODULE,
        "tests/conftest.py": "import ostiary.other, ostiary_gateway.limits",
        "tests/unit/ostiary/test_other.py": "def test_nothing(): ...",
        "tests/unit/ostiary_gateway/test_limits.py": GOOD_TEST,
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    return tmp_path


def run(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, tree / "scripts" / "mutants", "ostiary_gateway/limits.py", "--all"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_mutants_of_a_module_that_is_imported_before_the_tests_are_in_effect(tree: Path) -> None:
    code, output = run(tree)
    assert "4 of 4 killed: 100.0 %; 0 not in effect" in output
    assert code == 0


def test_a_mutant_that_no_test_notices_survives(tree: Path) -> None:
    (tree / "tests/unit/ostiary_gateway/test_limits.py").write_text(GOOD_TEST.replace("(3)", "(4)"))
    code, output = run(tree)
    assert f"{PLACE} (1 tests pass)\n    - return number < 3\n    + return number <= 3" in output
    assert "2 of 4 killed: 50.0 %; 0 not in effect" in output
    assert code == 1


def test_a_mutant_is_an_error_if_the_tests_use_another_copy_of_the_module(tree: Path) -> None:
    (tree / "tests/unit/ostiary_gateway/test_limits.py").write_text(
        "import runpy, pathlib, ostiary_gateway\n"
        "is_allowed = runpy.run_path(pathlib.Path(ostiary_gateway.__file__).with_name('limits.py'))['is_allowed']\n"
        + GOOD_TEST.replace("from ostiary_gateway.limits import is_allowed", "")
    )
    code, output = run(tree)
    assert f"{PLACE} (not in effect)" in output
    assert "0 of 0 killed: 100.0 %; 4 not in effect" in output
    assert code == 1
