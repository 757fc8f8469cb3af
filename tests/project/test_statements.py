"""The statements of the reference and the tests agree: what is built has a test, and what is decided has a record.

A row of a table is the one declaration of a statement. Nothing here lists letters or numbers.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
PAGES = sorted(REFERENCE.glob("statements*.md"))
ROW = re.compile(r"^\| (?P<name>[A-Z][0-9]+) \| (?P<text>.+) \| (?P<state>[^|]*) \|$", re.MULTILINE)
# Whatever looks like a statement has to be one, also with a letter that no page has.
REFERENCES = re.compile(r"\b[A-Z][1-9][0-9]{0,2}\b")
DECIDED = re.compile(r"\[decided\]\((?P<record>[^)]+)\)")


class Statement(NamedTuple):
    name: str
    text: str
    state: str
    page: Path


@cache
def statements() -> tuple[Statement, ...]:
    return tuple(
        Statement(row["name"], row["text"], row["state"], page)
        for page in PAGES
        for row in ROW.finditer(page.read_text())
    )


def docstrings() -> Iterator[tuple[Path, str]]:
    """Those of the tests, and of the classes that hold them, in the tests and in the suites that are shipped."""
    for path in [
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "packages/ostiary-gateway/src/ostiary_gateway/testing").rglob("*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.lower()[:4] == "test"
            ):
                yield path, ast.get_docstring(node) or ""


@cache
def named() -> dict[str, Path]:
    """Every statement that a test names, with one of the places."""
    return {name: path for path, text in docstrings() for name in REFERENCES.findall(text)}


def test_a_statement_stands_once() -> None:
    counts = Counter(statement.name for statement in statements())
    assert [name for name, count in counts.items() if count > 1] == []


def test_statements_are_numbered_without_gaps_and_stand_on_one_page() -> None:
    by_letter = groupby(sorted(statements()), key=lambda statement: statement.name[0])
    for letter, group in by_letter:
        rows = list(group)
        assert {int(row.name[1:]) for row in rows} == set(range(1, len(rows) + 1)), letter
        assert len({row.page for row in rows}) == 1, letter


def test_every_row_of_a_page_that_has_a_number_is_read() -> None:
    """A row whose state is misspelt, or that has a column too many, would otherwise be no statement."""
    for page in PAGES:
        rows = re.findall(r"^\| [A-Z][0-9]+ \|", page.read_text(), re.MULTILINE)
        assert len(rows) == sum(statement.page == page for statement in statements()), page.name


def is_record(path: Path) -> bool:
    return path.is_file() and path.parent == ROOT / "docs/decisions"


def test_a_statement_is_built_or_decided_or_not_yet_built() -> None:
    decided = {each.name: DECIDED.fullmatch(each.state) for each in statements()}
    records = {name: (REFERENCE / match["record"]).resolve() for name, match in decided.items() if match}
    no_records = [f"{name}: {path}" for name, path in records.items() if not is_record(path)]
    assert not no_records, "\n".join(no_records)
    others = {each.name: each.state for each in statements() if each.name not in records}
    no_states = [f"{name}: {state}" for name, state in others.items() if state not in ("built", "not yet")]
    assert not no_states, "\n".join(no_states)


def test_what_is_built_is_named_by_a_test() -> None:
    built = {statement.name for statement in statements() if statement.state == "built"}
    assert sorted(built - set(named())) == []


def test_no_test_names_a_statement_that_does_not_exist() -> None:
    known = {statement.name for statement in statements()}
    assert {name: str(path) for name, path in named().items() if name not in known} == {}
