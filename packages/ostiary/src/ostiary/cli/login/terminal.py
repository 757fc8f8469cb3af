"""The user who signs in: their options, and prompts on the terminal.

Nothing is written to stdout, which a client may parse.
"""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import dataclass
from typing import Protocol

from ostiary.cli.output import print_note
from ostiary.core.text import printable
from ostiary.model import Secret

# The controlling terminal, regardless of stdin and stdout.


@dataclass(frozen=True, slots=True)
class TerminalDevice:
    """The paths under which the terminal is opened for reading and writing."""

    reads: str
    writes: str

    def is_present(self) -> bool:
        try:
            with open(self.reads, "rb", buffering=0) as terminal:
                return os.isatty(terminal.fileno())
        except OSError:
            return False

    def ask(self, question: str) -> str:
        with open(self.writes, "wb", buffering=0) as terminal:
            terminal.write(question.encode())
        with open(self.reads, "rb", buffering=0) as terminal:
            return terminal.readline().decode("utf-8", "replace").strip()


POSIX = TerminalDevice("/dev/tty", "/dev/tty")
WINDOWS = TerminalDevice("CONIN$", "CONOUT$")


def terminal() -> TerminalDevice:
    """Return the terminal of this machine."""
    return WINDOWS if os.name == "nt" else POSIX


SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Wishes:
    """The user's options for a sign-in. `username` is the default for a password prompt."""

    provider: str | None = None
    device: bool = False
    no_browser: bool = False
    seconds: float = SECONDS
    username: str = ""


class Person(Protocol):
    """The user. `present` says whether prompts are possible."""

    present: bool

    def tell(self, text: str) -> None: ...

    def ask(self, prompt: str, default: str) -> str: ...

    def ask_secret(self, prompt: str) -> Secret: ...


class AtTerminal:
    """Messages and prompts on the terminal. *quiet* suppresses messages if stderr is not a terminal, but a log."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = terminal()
        self.present = self._terminal.is_present()

    def tell(self, text: str) -> None:
        if sys.stderr is not None and (not self._quiet or sys.stderr.isatty()):
            print_note(text)
            sys.stderr.flush()

    def ask(self, prompt: str, default: str) -> str:
        question = f"{prompt} [{printable(default)}]: " if default else f"{prompt}: "
        return self._terminal.ask(question) or default

    def ask_secret(self, prompt: str) -> Secret:
        return Secret(getpass.getpass(f"{prompt}: "))
