"""What the scripts of all shells share: the walk over the words before the cursor.

Each script walks over these words to learn the level, skipping the values of options, and then offers what that level
has. The walk of bash and zsh is the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ostiary.cli.completion.levels import CommandLevel, Option

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
    """How the walk sees *option* when it stands at *level*."""
    return [f"{level_name(level.path)} {name}" for name in option.names]


def descents(levels: tuple[CommandLevel, ...]) -> Iterator[tuple[str, str]]:
    """(what the walk sees, the level that it comes to)"""
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


def fill_script(
    template: str,
    levels: tuple[CommandLevel, ...],
    *,
    values: Callable[[Option], str],
    offer: Callable[[CommandLevel], str],
) -> str:
    """The script of a shell with ``case``: *values* completes the value of an option, *offer* the words of a level."""
    return template.format(
        walk=walk(levels),
        values="\n".join(
            f"        {any_of(option_keys(level, option))}) {values(option)}return ;;"
            for level in levels
            for option in level.options
            if option.values is not None
        ),
        offers="\n".join(offer(level) for level in levels),
    )
