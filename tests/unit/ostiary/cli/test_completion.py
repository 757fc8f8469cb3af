"""The completion script for PowerShell, read by a grammar of the language: there is no PowerShell among the packages.

So what is tried here is that it can be parsed, and that its tables have every word, option and value; pressing Tab is
not.
"""

from __future__ import annotations

import re

import pytest

from ostiary.cli import COMMANDS
from ostiary.cli.completion import FILES, CommandLevel, Option, levels, powershell, whole_parser

tree_sitter = pytest.importorskip("tree_sitter")
grammar = pytest.importorskip("tree_sitter_powershell")


def has_errors(script: str) -> bool:
    parser = tree_sitter.Parser(tree_sitter.Language(grammar.language()))
    return bool(parser.parse(script.encode()).root_node.has_error)


@pytest.fixture(scope="module")
def script() -> str:
    return powershell(tuple(levels(whole_parser())), "ostiary")


def offers(script: str, level: str) -> list[tuple[str, str]]:
    """What the script offers at *level*: words and what they do."""
    (line,) = re.findall(rf"^ +'{re.escape(level)}' {{ \$offers = (.*); break }}$", script, re.MULTILINE)
    pairs = re.findall(r",@\('((?:[^']|'')*)', '((?:[^']|'')*)'\)", line)
    return [(word.replace("''", "'"), text.replace("''", "'")) for word, text in pairs]


def test_the_script_can_be_parsed(script: str) -> None:
    assert not has_errors(script)
    assert has_errors(script.replace("foreach ($word in $before) {", "foreach ($word in $before {"))


def test_it_offers_every_command_and_what_it_does(script: str) -> None:
    shown = dict(offers(script, "/"))
    assert {name: text for name, (_, text) in COMMANDS.items()}.items() <= shown.items()


def test_it_offers_what_each_level_has(script: str) -> None:
    for level in levels(whole_parser()):
        names = [word for word, _ in level.words] + [name for option in level.options for name in option.names]
        path = "/" + "/".join(level.path)
        assert [word for word, _ in offers(script, path)] == names


def test_values_are_offered_after_their_option_and_files_are_left_to_the_shell(script: str) -> None:
    assert [word for word, _ in offers(script, "/exec/run --output")] == ["text", "json", "header"]
    assert "'/exec/run --kubeconfig' { $option = " in script
    assert "'/exec/run --kubeconfig' { $offers = " not in script


def test_no_text_ends_a_string_early() -> None:
    level = CommandLevel(
        (), (("word", "it's $(Get-Date)\nand `more"),), (Option(("-o",), "", ("a'b",)), Option(("-f",), "", FILES))
    )
    script = powershell((level,), "ostiary")
    assert not has_errors(script)
    assert offers(script, "/")[0] == ("word", "it's $(Get-Date) and `more")
    assert offers(script, "/ -o") == [("a'b", "a'b")]
