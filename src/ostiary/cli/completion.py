"""``ostiary completion``: tab completion for a shell, made from the parsers of all commands.

A script holds everything it needs to know, so pressing tab starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from ostiary.cli import COMMANDS, command_module
from ostiary.cli.arguments import Parser

HELP = """\
Print a script that completes commands, options and values.

For this shell only, to try it:

  bash   source <(ostiary completion bash)
  zsh    source <(ostiary completion zsh)
  fish   ostiary completion fish | source

For every new shell, in a directory that must exist:

  bash   ostiary completion bash > ~/.local/share/bash-completion/completions/ostiary
  zsh    ostiary completion zsh > "${fpath[1]}/_ostiary"
  fish   ostiary completion fish > ~/.config/fish/completions/ostiary.fish
"""

FILES, PROGRAMS = "files", "programs"


@dataclass(frozen=True, slots=True)
class Option:
    """`values` are what may follow it: None if nothing may, `FILES`, or words, of which there may be none."""

    names: tuple[str, ...]
    help: str
    values: str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Level:
    """What may be typed after the words of `path`. `rest` tells what a free argument would be."""

    path: tuple[str, ...]
    words: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    rest: str | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = HELP
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell to print it for")
    parser.set_defaults(run=print_script)


def print_script(arguments: argparse.Namespace) -> int:
    print(SCRIPTS[arguments.shell](tuple(levels(whole_parser()))), end="")
    return 0


# --- the parsers as levels ---


def whole_parser() -> argparse.ArgumentParser:
    """Every command with all of its options, as one parser."""
    parser = Parser(prog="ostiary")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers()
    for name, (_, does) in COMMANDS.items():
        command_module(name).configure(commands.add_parser(name, help=does))
    return parser


def levels(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Level]:
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
    yield Level(path, tuple(words), tuple(options), rest)
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


def _name(path: tuple[str, ...]) -> str:
    return "/" + "/".join(path)


def _keys(level: Level, option: Option) -> list[str]:
    """How the walk sees *option* when it stands at *level*."""
    return [f"{_name(level.path)} {name}" for name in option.names]


def _descents(found: tuple[Level, ...]) -> Iterator[tuple[str, str]]:
    """(what the walk sees, the level that it comes to)"""
    for level in found:
        if level.path:
            yield f"{_name(level.path[:-1])} {level.path[-1]}", _name(level.path)


def _taking_values(found: tuple[Level, ...]) -> list[str]:
    return [
        key for level in found for option in level.options if option.values is not None for key in _keys(level, option)
    ]


def _any_of(keys: list[str]) -> str:
    return "|".join(f'"{key}"' for key in keys)


# Each script walks over the words before the cursor to learn the level, skipping the values of options, and
# then offers what that level has. The walk of bash and zsh is the same text.

WALK = """\
        case "$level $word" in
{descents}
            {taking_values}) i=$((i + 1)) ;;
{free}
        esac
"""


def _walk(found: tuple[Level, ...]) -> str:
    return WALK.format(
        descents="\n".join(f'            "{seen}") level="{level}" ;;' for seen, level in _descents(found)),
        taking_values=_any_of(_taking_values(found)),
        free="\n".join(f'            "{_name(level.path)} "[!-]*) rest=1 ;;' for level in found if level.rest),
    )


# --- bash ---

BASH = """\
# bash completion for ostiary
_ostiary_files() {{
    local IFS=$'\\n'
    COMPREPLY=($(compgen "$@" -- "$current"))
}}
_ostiary() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" level="/" rest="" i word
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
{walk}\
        [[ -n $rest ]] && break
    done
    COMPREPLY=()
    if [[ -n $rest ]]; then
        _ostiary_files -f
        return
    fi
    case "$level $previous" in
{values}
    esac
    case "$level" in
{offers}
    esac
}}
complete -o filenames -F _ostiary ostiary
"""


def bash(found: tuple[Level, ...]) -> str:
    return BASH.format(
        walk=_walk(found),
        values="\n".join(
            f"        {_any_of(_keys(level, option))}) {_bash_values(option)}return ;;"
            for level in found
            for option in level.options
            if option.values is not None
        ),
        offers="\n".join(_bash_offer(level) for level in found),
    )


def _bash_values(option: Option) -> str:
    if option.values == FILES:
        return "_ostiary_files -f; "
    return f"{_bash_reply(' '.join(option.values))}; " if option.values else ""


def _bash_reply(words: str) -> str:
    return f'COMPREPLY=($(compgen -W "{words}" -- "$current"))'


def _bash_offer(level: Level) -> str:
    names = [name for option in level.options for name in option.names]
    offer = _bash_reply(" ".join([*(word for word, _ in level.words), *names]))
    if level.rest == PROGRAMS:
        offer = f"if [[ $current == -* ]]; then {offer}; else _ostiary_files -c -f; fi"
    return f'        "{_name(level.path)}") {offer} ;;'


# --- zsh ---

ZSH = """\
#compdef ostiary
# zsh completion for ostiary
_ostiary() {{
    local level="/" rest="" word
    local -i i
    for ((i = 2; i < CURRENT; i++)); do
        word="${{words[i]}}"
{walk}\
        [[ -n $rest ]] && break
    done
    if [[ -n $rest ]]; then
        _files
        return
    fi
    case "$level ${{words[CURRENT-1]}}" in
{values}
    esac
    local -a offers
    case "$level" in
{offers}
    esac
    _describe ostiary offers
}}
if [[ $funcstack[1] == _ostiary ]]; then
    _ostiary "$@"
else
    compdef _ostiary ostiary
fi
"""


def zsh(found: tuple[Level, ...]) -> str:
    return ZSH.format(
        walk=_walk(found),
        values="\n".join(
            f"        {_any_of(_keys(level, option))}) {_zsh_values(option)}return ;;"
            for level in found
            for option in level.options
            if option.values is not None
        ),
        offers="\n".join(_zsh_offer(level) for level in found),
    )


def _zsh_values(option: Option) -> str:
    if option.values == FILES:
        return "_files; "
    return f"compadd -- {' '.join(option.values)}; " if option.values else ""


def _zsh_offer(level: Level) -> str:
    pairs = [*level.words, *((name, option.help) for option in level.options for name in option.names)]
    offers = " ".join(_zsh_quoted(f"{word}:{text}" if text else word) for word, text in pairs)
    command = "[[ $PREFIX != -* ]] && _command_names; " if level.rest == PROGRAMS else ""
    return f'        "{_name(level.path)}") {command}offers=({offers}) ;;'


def _zsh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# --- fish ---

FISH = """\
# fish completion for ostiary
function __ostiary_is
    set -l words (commandline -opc)
    set -e words[1]
    set -l level /
    set -l is_value no
    for word in $words
        if test $is_value = yes
            set is_value no
            continue
        end
        switch "$level $word"
{descents}
            case {taking_values}
                set is_value yes
        end
    end
    test $level = $argv[1]
end
complete -c ostiary -f
{offers}
"""


def fish(found: tuple[Level, ...]) -> str:
    return FISH.format(
        descents="\n".join(
            f"            case '{seen}'\n                set level {level}" for seen, level in _descents(found)
        ),
        taking_values=" ".join(f"'{key}'" for key in _taking_values(found)),
        offers="\n".join(row for level in found for row in _fish_offers(level)),
    )


def _fish_offers(level: Level) -> Iterator[str]:
    start = f"complete -c ostiary -n '__ostiary_is {_name(level.path)}'"
    for word, text in level.words:
        yield f"{start} -a {word} -d {_fish_quoted(text)}"
    for option in level.options:
        yield f"{start} {_fish_names(option)} -d {_fish_quoted(option.help)}{_fish_values(option)}"
    if level.rest == PROGRAMS:
        yield f"{start} -F -a '(__fish_complete_command)'"


def _fish_names(option: Option) -> str:
    return " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)


def _fish_values(option: Option) -> str:
    if option.values is None:
        return ""
    if option.values == FILES:
        return " -r -F"
    return f" -x -a {_fish_quoted(' '.join(option.values))}" if option.values else " -x"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
