"""The completion script for bash."""

from __future__ import annotations

from ostiary.cli.completion.levels import FILES, PROGRAMS, CommandLevel, Option
from ostiary.cli.completion.walk import fill_script, level_name

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


def bash(levels: tuple[CommandLevel, ...]) -> str:
    return fill_script(BASH, levels, values=_values, offer=_offer)


def _values(option: Option) -> str:
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
