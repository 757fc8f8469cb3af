"""Command lines of the subcommands that use argparse: parse, run, and report errors.

The dispatcher (`ostiary.cli`) calls `run_command` for every module that has `configure`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from typing import NoReturn

from ostiary.cli.exit_codes import FAILED, USAGE
from ostiary.cli.output import log_as_notes, print_error
from ostiary.core.text import printable
from ostiary.errors import OstiaryError

TEXT, JSON = "text", "json"
LONGEST_NAME = 60


class UsageError(OstiaryError):
    """The command line is invalid; nothing was done."""

    default_code = "usage"


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises `UsageError` and never guesses abbreviated options."""

    def __init__(self, *arguments: object, **options: object) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        # argparse quotes invalid words, and one may be a misplaced token.
        from ostiary.core.redaction import redact

        raise UsageError(redact(message), hint=f"{self.prog} --help")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Like argparse's, but suggests the closest option for an unknown one."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._refuse_unknown(unknown)
        return parsed

    def _refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        # Name only what looks like an option: any other word may be a misplaced token.
        options = [word.partition("=")[0] for word in words if word.startswith("-") and len(word) > 1]
        if not options:
            raise UsageError("too many arguments", hint=f"{self.prog} --help")
        raise UsageError(
            f"unknown option {printable(options[0][:LONGEST_NAME])}",
            hint=did_you_mean(options[0], _options(self)) or f"{self.prog} --help",
        )

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        what = f"{action.option_strings[0]} is" if action.option_strings else "it is"
        raise UsageError(
            f"{what} one of {', '.join(names)}", hint=did_you_mean(str(value), names) or f"{self.prog} --help"
        )


def did_you_mean(word: str, names: Iterable[str]) -> str | None:
    """Return a hint for a word that resembles one of *names*, or None."""
    close = get_close_matches(word, list(names), n=1)
    return f"did you mean {close[0]}?" if close else None


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Return every option of a parser and its subparsers."""
    options: list[str] = []
    for action in parser._actions:
        if action.help is not argparse.SUPPRESS:
            options += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            options += [option for below in action.choices.values() for option in _options(below)]
    return options


def add_output(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add ``--output``, which also selects the format of errors."""
    parser.add_argument(
        "-o", "--output", choices=(TEXT, JSON, *more), default=TEXT, help="how to print (default: %(default)s)"
    )


def seconds(text: str) -> float:
    """Parse a time limit. The `type` of an option."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


seconds.__name__ = "number of seconds"  # The name that argparse uses in errors.


def expiration_seconds(arguments: argparse.Namespace) -> int | None:
    """Return the value of ``--for`` in seconds. Also accepts days, because such tokens live for months."""
    from ostiary.core.duration import DurationError, parse_duration

    text = arguments.lifetime
    if text is None:
        return None
    days = text[:-1] if text.endswith("d") and text[:-1].isdigit() and text.isascii() else None
    try:
        seconds = int(days) * 86_400 if days is not None else int(parse_duration(text).total_seconds())
    except (DurationError, ValueError):
        seconds = 0
    if not 1 <= seconds <= 100 * 366 * 86_400:
        raise UsageError("--for needs a time", hint="as in: --for 30m, --for 12h or --for 90d")
    return seconds


def environment(pairs: Sequence[str]) -> dict[str, str]:
    """Return the variables set by ``--env``."""
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            # Not quoted: it may be a value without its name.
            raise UsageError("--env takes NAME=VALUE", hint="--env REGION=north")
        variables[name] = value
    return variables


def run_command(
    prog: str, description: str, configure: Callable[[argparse.ArgumentParser], None], argv: Sequence[str]
) -> int:
    """Run the command that *configure* describes, print its errors, and return the exit code."""
    parser = Parser(prog=prog, description=description)
    configure(parser)
    try:
        arguments = parser.parse_args(argv)
    except UsageError as error:
        return _usage(error, argv)
    except SystemExit as left:
        # argparse has printed the help.
        return int(left.code or 0)
    try:
        with log_as_notes():
            return int(arguments.run(arguments))
    except UsageError as error:
        return _usage(error, argv)
    except OstiaryError as error:
        print_error(error, as_json=getattr(arguments, "output", TEXT) == JSON)
        return FAILED


def plugged_module(name: str) -> str | None:
    """Return the module of a command that another distribution declares in the group ``ostiary.command``."""
    from ostiary.core.entry_points import installed_entry_points

    return next((point.module for point in installed_entry_points("command").select(name=name)), None)


def run_plugged(program: str, name: str, does: str, argv: Sequence[str]) -> int:
    """Run a command of another distribution, or print the extra that installs it."""
    prog = f"{program} {name}"
    module_name = plugged_module(name)
    if module_name is None:
        from ostiary.core.extras import missing

        print_error(missing("ostiary_gateway", name, purpose=prog), as_json=_asks_for_json(argv))
        return FAILED
    module = import_module(module_name)
    return int(module.main(argv)) if hasattr(module, "main") else run_command(prog, does, module.configure, argv)


def refuse_command(
    name: str, argv: Sequence[str], *, program: str, commands: Sequence[str], elsewhere: Mapping[str, str]
) -> int:
    """Reject an unknown command. *elsewhere* maps the commands of the other program to its name."""
    close = get_close_matches(name, commands, n=1)
    other = get_close_matches(name, elsewhere, n=1)
    if name in elsewhere:
        hint = f"did you mean {elsewhere[name]} {name}?"
    elif close:
        hint = f"did you mean {program} {close[0]}?"
    elif other:
        hint = f"did you mean {elsewhere[other[0]]} {other[0]}?"
    else:
        hint = f"{program} --help lists the commands"
    return _usage(UsageError(f"unknown command {name!r}", hint=hint), argv)


def _usage(error: UsageError, argv: Sequence[str]) -> int:
    print_error(error, as_json=_asks_for_json(argv))
    return USAGE


def _asks_for_json(argv: Sequence[str]) -> bool:
    """Whether an invalid command line requests JSON, so that the error is printed as JSON as well."""
    if "--output=json" in argv or "-ojson" in argv:
        return True
    return any(option in ("-o", "--output") and value == JSON for option, value in pairwise(argv))
