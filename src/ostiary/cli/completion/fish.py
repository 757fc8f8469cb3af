"""The completion script for fish."""

from __future__ import annotations

from collections.abc import Iterator

from ostiary.cli.completion.levels import FILES, PROGRAMS, CommandLevel, Option
from ostiary.cli.completion.walk import descents, keys_with_value, level_name

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


def fish(levels: tuple[CommandLevel, ...]) -> str:
    return FISH.format(
        descents="\n".join(
            f"            case '{words}'\n                set level {level}" for words, level in descents(levels)
        ),
        taking_values=" ".join(f"'{key}'" for key in keys_with_value(levels)),
        offers="\n".join(row for level in levels for row in _offers(level)),
    )


def _offers(level: CommandLevel) -> Iterator[str]:
    start = f"complete -c ostiary -n '__ostiary_is {level_name(level.path)}'"
    for word, text in level.words:
        yield f"{start} -a {word} -d {_quote(text)}"
    for option in level.options:
        yield f"{start} {_names(option)} -d {_quote(option.help)}{_values(option)}"
    if level.rest == PROGRAMS:
        yield f"{start} -F -a '(__complete_command)'"


def _names(option: Option) -> str:
    return " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)


def _values(option: Option) -> str:
    if option.values is None:
        return ""
    if option.values == FILES:
        return " -r -F"
    return f" -x -a {_quote(' '.join(option.values))}" if option.values else " -x"


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
