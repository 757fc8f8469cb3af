"""``ostiary completion``: shell completion, generated from the parsers of all commands.

A script is self-contained, so pressing tab does not start Python.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from ostiary.cli import COMMANDS
from ostiary.cli.arguments import Parser, plugged_module
from ostiary.cli.dispatch import command_module

# The parsers of all commands as levels: which words are valid after which.

FILES, PROGRAMS = "files", "programs"


@dataclass(frozen=True, slots=True)
class Option:
    """An option. `values` is None for a flag, `FILES`, or a possibly empty tuple of words."""

    names: tuple[str, ...]
    help: str
    values: str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class CommandLevel:
    """The words that are valid after those of `path`. `rest` is the kind of a positional argument."""

    path: tuple[str, ...]
    words: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    rest: str | None = None


def whole_parser(
    program: str = "ostiary", commands: Mapping[str, tuple[str, str]] = COMMANDS
) -> argparse.ArgumentParser:
    """Return one parser with every command and all of its options."""
    parser = Parser(prog=program)
    parser.add_argument("--version", action="store_true")
    below = parser.add_subparsers()
    for name, (module, does) in commands.items():
        found = module or plugged_module(name)
        if found:
            command_module(found).configure(below.add_parser(name, help=does))
    return parser


def levels(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[CommandLevel]:
    """Yield *parser* and all parsers below it."""
    below: dict[str, argparse.ArgumentParser] = {}
    words: list[tuple[str, str]] = []
    options: list[Option] = []
    rest = None
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            words += [(choice.dest, choice.help or "") for choice in action._choices_actions]
        elif action.help == argparse.SUPPRESS:
            # Internal commands, which one part of the program uses to call another.
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


# Each script walks over the words before the cursor to find the level, skipping option values, and then offers the
# words of that level. bash and zsh share the text of the walk.

WALK = """\
        case "$level $word" in
{descents}
            {taking_values}) i=$((i + 1)) ;;
{free}
        esac
"""


def level_name(path: tuple[str, ...]) -> str:
    return "/" + "/".join(path)


def option_keys(level: CommandLevel, option: Option) -> list[str]:
    """Return the keys of *option* at *level*, as used in the walk."""
    return [f"{level_name(level.path)} {name}" for name in option.names]


def descents(levels: tuple[CommandLevel, ...]) -> Iterator[tuple[str, str]]:
    """Yield (key in the walk, the level that it leads to)."""
    for level in levels:
        if level.path:
            yield f"{level_name(level.path[:-1])} {level.path[-1]}", level_name(level.path)


def keys_with_value(levels: tuple[CommandLevel, ...]) -> list[str]:
    return [
        key
        for level in levels
        for option in level.options
        if option.values is not None
        for key in option_keys(level, option)
    ]


def any_of(keys: list[str]) -> str:
    return "|".join(f'"{key}"' for key in keys)


def walk(levels: tuple[CommandLevel, ...]) -> str:
    return WALK.format(
        descents="\n".join(f'            "{words}") level="{level}" ;;' for words, level in descents(levels)),
        taking_values=any_of(keys_with_value(levels)),
        free="\n".join(f'            "{level_name(level.path)} "[!-]*) rest=1 ;;' for level in levels if level.rest),
    )


def named(template: str, program: str) -> str:
    """Replace the name of the program in *template*, including in function names."""
    return re.sub(r"(_?)ostiary", lambda found: "_" + program.replace("-", "_") if found[1] else program, template)


def fill_script(
    template: str,
    levels: tuple[CommandLevel, ...],
    program: str,
    *,
    values: Callable[[Option], str],
    offer: Callable[[CommandLevel], str],
) -> str:
    """Return the script for a shell with ``case``.

    *values* completes the value of an option, *offer* the words of a level.
    """
    return named(template, program).format(
        walk=walk(levels),
        values="\n".join(
            f"        {any_of(option_keys(level, option))}) {values(option)}return ;;"
            for level in levels
            for option in level.options
            if option.values is not None
        ),
        offers="\n".join(offer(level) for level in levels),
    )


# bash

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


def bash(levels: tuple[CommandLevel, ...], program: str) -> str:
    return fill_script(BASH, levels, program, values=_bash_values, offer=_offer)


def _bash_values(option: Option) -> str:
    if option.values == FILES:
        return "_ostiary_files -f; "
    return f"{_reply(' '.join(option.values))}; " if option.values else ""


def _reply(words: str) -> str:
    return f'COMPREPLY=($(compgen -W "{words}" -- "$current"))'


def _offer(level: CommandLevel) -> str:
    names = [name for option in level.options for name in option.names]
    offer = _reply(" ".join([*(word for word, _ in level.words), *names]))
    if level.rest == PROGRAMS:
        offer = f"if [[ $current == -* ]]; then {offer}; else _ostiary_files -c -f; fi"
    return f'        "{level_name(level.path)}") {offer} ;;'


# zsh

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


def zsh(levels: tuple[CommandLevel, ...], program: str) -> str:
    return fill_script(ZSH, levels, program, values=_zsh_values, offer=_zsh_offer)


def _zsh_values(option: Option) -> str:
    if option.values == FILES:
        return "_files; "
    return f"compadd -- {' '.join(option.values)}; " if option.values else ""


def _zsh_offer(level: CommandLevel) -> str:
    pairs = [*level.words, *((name, option.help) for option in level.options for name in option.names)]
    offers = " ".join(_quote(f"{word}:{text}" if text else word) for word, text in pairs)
    command = "[[ $PREFIX != -* ]] && _command_names; " if level.rest == PROGRAMS else ""
    return f'        "{level_name(level.path)}") {command}offers=({offers}) ;;'


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# fish

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


def fish(levels: tuple[CommandLevel, ...], program: str) -> str:
    return named(FISH, program).format(
        descents="\n".join(
            f"            case '{words}'\n                set level {level}" for words, level in descents(levels)
        ),
        taking_values=" ".join(f"'{key}'" for key in keys_with_value(levels)),
        offers="\n".join(row for level in levels for row in _offers(level, program)),
    )


def _offers(level: CommandLevel, program: str) -> Iterator[str]:
    start = named(f"complete -c ostiary -n '__ostiary_is {level_name(level.path)}'", program)
    for word, text in level.words:
        yield f"{start} -a {word} -d {_fish_quote(text)}"
    for option in level.options:
        yield f"{start} {_names(option)} -d {_fish_quote(option.help)}{_fish_values(option)}"
    if level.rest == PROGRAMS:
        yield f"{start} -F -a '(__complete_command)'"


def _names(option: Option) -> str:
    return " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)


def _fish_values(option: Option) -> str:
    if option.values is None:
        return ""
    if option.values == FILES:
        return " -r -F"
    return f" -x -a {_fish_quote(' '.join(option.values))}" if option.values else " -x"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# PowerShell, on Windows and elsewhere.

# If there are no offers, PowerShell completes files. `switch` instead of a hash table, whose keys ignore case.
POWERSHELL = """\
# PowerShell completion for ostiary
Register-ArgumentCompleter -Native -CommandName 'ostiary', 'ostiary.exe' -ScriptBlock {{
    param($wordToComplete, $commandAst, $cursorPosition)
    $level = '/'
    $option = ''
    $before = @($commandAst.CommandElements | Select-Object -Skip 1 |
        Where-Object {{ $_.Extent.EndOffset -lt $cursorPosition }} | ForEach-Object {{ $_.Extent.Text }})
    foreach ($word in $before) {{
        if ($option) {{
            $option = ''
            continue
        }}
        switch -CaseSensitive ("$level $word") {{
{descents}
{taking_values}
        }}
    }}
    $offers = @()
    if ($option) {{
        switch -CaseSensitive ($option) {{
{values}
        }}
    }} else {{
        switch -CaseSensitive ($level) {{
{offers}
        }}
    }}
    $offers | Where-Object {{ $_[0].StartsWith($wordToComplete) }} | ForEach-Object {{
        [System.Management.Automation.CompletionResult]::new($_[0], $_[0], 'ParameterValue', $_[1])
    }}
}}
"""


def powershell(levels: tuple[CommandLevel, ...], program: str) -> str:
    return named(POWERSHELL, program).format(
        descents="\n".join(
            f"            {_powershell_quote(words)} {{ $level = {_powershell_quote(level)}; break }}"
            for words, level in descents(levels)
        ),
        taking_values="\n".join(
            f"            {_powershell_quote(key)} {{ $option = {_powershell_quote(key)}; break }}"
            for key, _ in _with_values(levels)
        ),
        values="\n".join(
            f"            {_powershell_quote(key)} {{ $offers = {_values_list(option)}; break }}"
            for key, option in _with_values(levels)
            if option.values and option.values != FILES
        ),
        offers="\n".join(
            f"            {_powershell_quote(level_name(level.path))} {{ $offers = {_level_list(level)}; break }}"
            for level in levels
        ),
    )


def _with_values(levels: tuple[CommandLevel, ...]) -> Iterator[tuple[str, Option]]:
    for level in levels:
        for option in level.options:
            if option.values is not None:
                for key in option_keys(level, option):
                    yield key, option


def _values_list(option: Option) -> str:
    return _list((value, value) for value in option.values or ())


def _level_list(level: CommandLevel) -> str:
    return _list(_powershell_offers(level))


def _powershell_offers(level: CommandLevel) -> Iterator[tuple[str, str]]:
    yield from level.words
    for option in level.options:
        for name in option.names:
            yield name, option.help


def _list(pairs: Iterator[tuple[str, str]]) -> str:
    # The leading comma keeps each pair an array: PowerShell would unroll a list of one.
    return (
        "@("
        + "; ".join(f",@({_powershell_quote(word)}, {_powershell_quote(text or word)})" for word, text in pairs)
        + ")"
    )


def _powershell_quote(text: str) -> str:
    return "'" + " ".join(text.split("\n")).replace("'", "''") + "'"


# The command ``ostiary completion``.

HELP = """\
Print a script that completes commands, options and values.

For this shell only, to try it:

  bash   source <(ostiary completion bash)
  zsh    source <(ostiary completion zsh)
  fish   ostiary completion fish | source
  powershell   ostiary completion powershell | Out-String | Invoke-Expression

For every new shell, in a directory that must exist:

  bash   ostiary completion bash > ~/.local/share/bash-completion/completions/ostiary
  zsh    ostiary completion zsh > "${fpath[1]}/_ostiary"
  fish   ostiary completion fish > ~/.config/fish/completions/ostiary.fish
  powershell   ostiary completion powershell >> $PROFILE
"""

SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish, "powershell": powershell}


def configure(
    parser: argparse.ArgumentParser, *, program: str = "ostiary", commands: Mapping[str, tuple[str, str]] = COMMANDS
) -> None:
    parser.description = named(HELP, program)
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell to print it for")
    parser.set_defaults(run=partial(print_script, program, commands))


def print_script(program: str, commands: Mapping[str, tuple[str, str]], arguments: argparse.Namespace) -> int:
    print(SCRIPTS[arguments.shell](tuple(levels(whole_parser(program, commands))), program), end="")
    return 0
