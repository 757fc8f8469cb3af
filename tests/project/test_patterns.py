"""Regular expressions mean the same to every Python that we support, the system's own included.

In Python before 3.11.5, which Debian 12 has, a possessive quantifier of a group (`(...)*+`) and an atomic group match
what they should not, and do not match what they should (gh-106052). One such pattern let paths with dot segments pass.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import re._constants as constants  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ostiary
import ostiary_gateway

ROOT = Path(__file__).parents[2]
SYSTEM_PYTHON = Path("/usr/bin/python3")
BUILT_FROM_SOURCE = ("gssapi", "ldap")  # libraries without wheels, which `make test` does without
ONE_CHARACTER = (constants.LITERAL, constants.NOT_LITERAL, constants.ANY, constants.IN)
# Where text of others is taken apart, and where a wrong match would let something pass.
READERS = (
    "tests/unit/ostiary/core/test_redaction.py",
    "tests/unit/ostiary/core/test_redaction_secret.py",
    "tests/unit/ostiary_gateway/http1/test_fast_head_parser.py",
    "tests/unit/ostiary_gateway/proxy/test_target.py",
    "tests/unit/ostiary/registry/kubelet/test_provider.py",
    "tests/unit/ostiary/wire",
    "tests/unit/ostiary_gateway/wire",
    "tests/fuzz/test_attributes_fuzz.py",
    "tests/fuzz/test_plain_head_fuzz.py",
)


def possessive_groups(pattern: re.Pattern[Any]) -> int:
    return sum(1 for _ in _possessive_groups(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)))


def _possessive_groups(tree: Any) -> Iterator[object]:
    if isinstance(tree, parser.SubPattern):
        for operator, argument in tree:
            is_group = operator is constants.ATOMIC_GROUP
            if operator is constants.POSSESSIVE_REPEAT:
                is_group = [each[0] in ONE_CHARACTER for each in argument[2]] != [True]
            if is_group:
                yield operator
            yield from _possessive_groups(argument)
    elif isinstance(tree, (tuple, list)):
        for each in tree:
            yield from _possessive_groups(each)


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Those of all modules, also where only a method of one is kept."""
    for module in (
        *pkgutil.walk_packages(ostiary.__path__, "ostiary."),
        *pkgutil.walk_packages(ostiary_gateway.__path__, "ostiary_gateway."),
    ):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name in BUILT_FROM_SOURCE:
                continue
            raise
        for name, value in vars(loaded).items():
            pattern = value if isinstance(value, re.Pattern) else getattr(value, "__self__", None)
            if isinstance(pattern, re.Pattern):
                yield f"{module.name}.{name}", pattern


@pytest.mark.parametrize(
    ("text", "count"), [("(?:ab)*+", 1), ("(?>a)", 1), ("a(?:b|(?:c[d]++)?+)", 1), ("[ab]++c*+", 0)]
)
def test_possessive_groups_are_seen(text: str, count: int) -> None:
    assert possessive_groups(re.compile(text)) == count


def test_no_pattern_has_a_possessive_group() -> None:
    named = dict(patterns())
    assert len(named) > 100
    assert [name for name, pattern in named.items() if possessive_groups(pattern)] == []


@pytest.mark.slow
def test_the_systems_python_reads_what_others_write_as_this_one_does() -> None:
    version = _version(SYSTEM_PYTHON)
    if version[:2] != sys.version_info[:2] or version == sys.version_info[:3]:
        pytest.skip(f"{SYSTEM_PYTHON} is no other Python of the same version: {version}")
    libraries = os.pathsep.join((*map(str, sorted(ROOT.glob("packages/*/src"))), sysconfig.get_path("purelib")))
    command = [str(SYSTEM_PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *READERS]
    run = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": libraries}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


def _version(python: Path) -> tuple[int, ...]:
    if not python.exists():
        return ()
    shown = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:3])"], capture_output=True, text=True, check=True
    )
    return tuple(map(int, shown.stdout.split()))
