"""Abilities and traits are in the reference, each under its plugin type, and are looked up in one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ostiary_gateway.capabilities import ABILITIES, CONTRACTS, KNOWN_NAMES, TRAITS, members

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/providers.md").read_text()
# Folders with providers, which implement abilities, and with the middleware, where `close` is that of WSGI.
IMPLEMENT = {"providers", "stores", "middleware"}


def rows(plugin_type: str, kind: str) -> dict[str, tuple[str, ...]]:
    """Of the tables of a section that list abilities, or traits: the names in the first column, by Protocol."""
    section = re.split(r"^## ", PAGE.partition(f"\n## {plugin_type}\n")[2], flags=re.MULTILINE)[0]
    _, _, table = section.partition(f"| {kind} | Protocol |")
    lines = table.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {row[1].strip("`"): tuple(re.findall(r"`(\w+)`", row[0])) for row in cells}


def test_the_reference_lists_every_ability_and_trait(subtests: pytest.Subtests) -> None:
    for plugin_type in CONTRACTS:
        for kind, table in [("ability", ABILITIES), ("trait", TRAITS)]:
            with subtests.test(plugin_type=plugin_type, kind=kind):
                assert rows(plugin_type, kind) == {each.__name__: members(each) for each in table[plugin_type]}


def test_the_reference_names_every_contract(subtests: pytest.Subtests) -> None:
    for plugin_type in CONTRACTS:
        with subtests.test(plugin_type=plugin_type):
            contract = CONTRACTS[plugin_type]
            assert f"`{contract.__module__}.{contract.__name__}`" in PAGE
            assert f"Entry points `ostiary.{plugin_type}`" in PAGE


@pytest.mark.parametrize("package", ["ostiary", "ostiary_gateway"])
def test_abilities_are_looked_up_in_one_place(package: str) -> None:
    """A name of an ability in a getattr elsewhere would go unchecked. `path` is too common a word."""
    protocols = {each.__name__ for table in (ABILITIES, TRAITS) for row in table.values() for each in row}
    forbidden = {"getattr": KNOWN_NAMES - {"path"}, "hasattr": KNOWN_NAMES, "isinstance": protocols}
    (folder,) = ROOT.glob(f"packages/*/src/{package}")
    for path in folder.rglob("*.py"):
        if path.relative_to(folder).parts[0] in IMPLEMENT:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
                second = node.args[1]
                name = second.value if isinstance(second, ast.Constant) else ast.unparse(second)
                assert name not in forbidden.get(node.func.id, ()), f"{path}:{node.lineno}"
