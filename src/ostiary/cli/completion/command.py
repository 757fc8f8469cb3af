"""``ostiary completion``: print the script for a shell."""

from __future__ import annotations

import argparse

from ostiary.cli.completion.bash import bash
from ostiary.cli.completion.fish import fish
from ostiary.cli.completion.levels import levels, whole_parser
from ostiary.cli.completion.powershell import powershell
from ostiary.cli.completion.zsh import zsh

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


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = HELP
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell to print it for")
    parser.set_defaults(run=print_script)


def print_script(arguments: argparse.Namespace) -> int:
    print(SCRIPTS[arguments.shell](tuple(levels(whole_parser()))), end="")
    return 0
