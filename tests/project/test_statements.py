"""What the reference says is built has a test that says so, and no test names a statement that is not there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/statements.md"
STATEMENT = re.compile(r"\b[SCRAHPLT][1-9][0-9]?\b")
ROW = re.compile(r"^\| ([SCRAHPLT]\d+) \| (.+) \| (built|not yet) \|$", re.MULTILINE)
TESTS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# The tests of the other doors number the rules of other documents.
OTHERS = (
    "tests/unit/client",
    "tests/unit/plugin/",
    "tests/unit/plugins/image_credential",
    "tests/unit/registry",
    "tests/unit/core/test_duration.py",
    "tests/unit/wire/test_client_authentication.py",
    "tests/unit/wire/test_credential_provider.py",
    "tests/unit/wire/test_exec_info.py",
    "tests/unit/wire/test_www_authenticate.py",
    "tests/conformance/adapters",
    "tests/e2e/test_client_go_cases.py",
    "tests/e2e/test_exec_plugin_integration.py",
    "tests/e2e/test_kubectl_parity.py",
    "tests/e2e/test_registry_pull.py",
)


def statements() -> dict[str, str]:
    """Each statement of the page, with its state."""
    rows = ROW.findall(PAGE.read_text())
    assert len({name for name, _, _ in rows}) == len(rows), "a statement stands there twice"
    return {name: state for name, _, state in rows}


def docstrings() -> Iterator[tuple[Path, str]]:
    """Those of the tests, and of the classes that hold them, in the tests and in the suites that are shipped."""
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "src/ostiary/testing").glob("*.py")]
    for path in files:
        shown = str(path.relative_to(ROOT))
        if shown.startswith(OTHERS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.lower()[:4] == "test"
            ):
                yield path, ast.get_docstring(node) or ""


@cache
def named() -> dict[str, Path]:
    """Every statement that a test names, with one of the places."""
    return {name: path for path, text in docstrings() for name in STATEMENT.findall(text)}


def test_the_page_has_every_statement_once() -> None:
    counts = {"S": 73, "C": 5, "R": 14, "A": 7, "H": 8, "P": 6, "L": 9, "T": 8}
    assert set(statements()) == {f"{letter}{number + 1}" for letter, most in counts.items() for number in range(most)}


def test_what_is_built_is_named_by_a_test() -> None:
    built = {name for name, state in statements().items() if state == "built"}
    assert sorted(built - set(named())) == []


def test_no_test_names_a_statement_that_does_not_exist() -> None:
    known = statements()
    assert {name: str(path) for name, path in named().items() if name not in known} == {}
