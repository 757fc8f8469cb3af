"""The completion script for zsh."""

from __future__ import annotations

from ostiary.cli.completion.levels import FILES, PROGRAMS, CommandLevel, Option
from ostiary.cli.completion.walk import fill_script, level_name

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


def zsh(levels: tuple[CommandLevel, ...]) -> str:
    return fill_script(ZSH, levels, values=_values, offer=_offer)


def _values(option: Option) -> str:
    if option.values == FILES:
        return "_files; "
    return f"compadd -- {' '.join(option.values)}; " if option.values else ""


def _offer(level: CommandLevel) -> str:
    pairs = [*level.words, *((name, option.help) for option in level.options for name in option.names)]
    offers = " ".join(_quote(f"{word}:{text}" if text else word) for word, text in pairs)
    command = "[[ $PREFIX != -* ]] && _command_names; " if level.rest == PROGRAMS else ""
    return f'        "{level_name(level.path)}") {command}offers=({offers}) ;;'


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
