"""The completion script for PowerShell, on Windows and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from ostiary.cli.completion.levels import FILES, CommandLevel, Option
from ostiary.cli.completion.walk import descents, level_name, option_keys

# Where nothing is offered, PowerShell offers files. `switch` and not a hash table, whose keys ignore case.
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


def powershell(levels: tuple[CommandLevel, ...]) -> str:
    return POWERSHELL.format(
        descents="\n".join(
            f"            {_quote(words)} {{ $level = {_quote(level)}; break }}" for words, level in descents(levels)
        ),
        taking_values="\n".join(
            f"            {_quote(key)} {{ $option = {_quote(key)}; break }}" for key, _ in _with_values(levels)
        ),
        values="\n".join(
            f"            {_quote(key)} {{ $offers = {_list((value, value) for value in option.values or ())}; break }}"
            for key, option in _with_values(levels)
            if option.values and option.values != FILES
        ),
        offers="\n".join(
            f"            {_quote(level_name(level.path))} {{ $offers = {_list(_offers(level))}; break }}"
            for level in levels
        ),
    )


def _with_values(levels: tuple[CommandLevel, ...]) -> Iterator[tuple[str, Option]]:
    for level in levels:
        for option in level.options:
            if option.values is not None:
                for key in option_keys(level, option):
                    yield key, option


def _offers(level: CommandLevel) -> Iterator[tuple[str, str]]:
    yield from level.words
    for option in level.options:
        for name in option.names:
            yield name, option.help


def _list(pairs: Iterator[tuple[str, str]]) -> str:
    # The comma before each pair keeps it a pair: a list of one would be taken apart.
    return "@(" + "; ".join(f",@({_quote(word)}, {_quote(text or word)})" for word, text in pairs) + ")"


def _quote(text: str) -> str:
    return "'" + " ".join(text.split("\n")).replace("'", "''") + "'"
