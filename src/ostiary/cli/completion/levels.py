"""The parsers of all commands as levels: what may be typed after which words. Read by the scripts of each shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from ostiary.cli import COMMANDS, command_module
from ostiary.cli.arguments import Parser

FILES, PROGRAMS = "files", "programs"


@dataclass(frozen=True, slots=True)
class Option:
    """`values` are what may follow it: None if nothing may, `FILES`, or words, of which there may be none."""

    names: tuple[str, ...]
    help: str
    values: str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class CommandLevel:
    """What may be typed after the words of `path`. `rest` tells what a free argument would be."""

    path: tuple[str, ...]
    words: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    rest: str | None = None


def whole_parser() -> argparse.ArgumentParser:
    """Every command with all of its options, as one parser."""
    parser = Parser(prog="ostiary")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers()
    for name, (_, does) in COMMANDS.items():
        command_module(name).configure(commands.add_parser(name, help=does))
    return parser


def levels(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[CommandLevel]:
    """*parser* and all parsers below it."""
    below: dict[str, argparse.ArgumentParser] = {}
    words: list[tuple[str, str]] = []
    options: list[Option] = []
    rest = None
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            words += [(choice.dest, choice.help or "") for choice in action._choices_actions]
        elif action.help == argparse.SUPPRESS:
            # Not for people: one part of the program calls another with it.
            continue
        elif action.option_strings:
            options.append(Option(tuple(action.option_strings), _help(action), _values(action)))
        elif action.choices:
            words += [(str(choice), "") for choice in action.choices]
        elif action.metavar == "COMMAND":
            rest = PROGRAMS
    yield CommandLevel(path, tuple(words), tuple(options), rest)
    for name, inner in below.items():
        yield from levels(inner, (*path, name))


def _help(action: argparse.Action) -> str:
    text = action.help or ""
    return text.partition(" (")[0].partition(";")[0]


def _values(action: argparse.Action) -> str | tuple[str, ...] | None:
    if action.nargs == 0:
        return None
    if action.choices:
        return tuple(map(str, action.choices))
    return FILES if action.metavar == "FILE" else ()
