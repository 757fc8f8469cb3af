"""The terminal that a person sits at, whatever stdin and stdout are. Called by `cli.signin.person.terminal`."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TerminalDevice:
    """The names under which the terminal is opened, to read and to write."""

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
    """That of this machine."""
    return WINDOWS if os.name == "nt" else POSIX
