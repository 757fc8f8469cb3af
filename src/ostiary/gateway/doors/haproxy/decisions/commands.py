"""The changes to HAProxy's maps that wait to be sent, as commands of its runtime socket. Pure.

Used by the pusher. What is taken out goes before what is put in. A key that no longer works, because its lease or its
time is over, only takes memory: such keys are taken out a few at a time, since HAProxy looks through its whole map for
each.

Every word of a command is made of characters that mean nothing else to HAProxy; `_WORD` makes sure of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# HAProxy reads a line into one buffer, of 16 KiB unless it is told otherwise.
LINE_BYTES = 12 * 1024
LONGEST_PASS = 8 * 1024
USELESS_AT_ONCE = 20
_WORD = re.compile(r"[A-Za-z0-9_.~%,|/-]+")
# What HAProxy says of a command that changed nothing, and need not have.
_HARMLESS = frozenset(("", "Key not found."))
NOT_FOUND = "entry not found."


class RuntimeRefusal(Exception):
    """HAProxy did not do what it was told. The message is its first line."""


class PendingCommands:
    """Those of one worker and door."""

    def __init__(self, decisions: str, leases: str) -> None:
        self._decisions, self._leases = decisions, leases
        self._adds: dict[str, str] = {}
        self._deletes: dict[str, None] = {}
        self._useless: dict[str, None] = {}
        self._ended_leases: list[str] = []

    @property
    def urgent(self) -> bool:
        """Whether there is something to send now."""
        return bool(self._adds or self._deletes or self._ended_leases)

    @property
    def useless(self) -> int:
        return len(self._useless)

    def add(self, key: str, text: str, *, replaces: bool) -> None:
        if replaces or key in self._useless or key in self._deletes:
            self._useless.pop(key, None)
            self._deletes[key] = None
        self._adds[key] = text

    def delete(self, keys: Iterable[str]) -> None:
        """Take them out at once."""
        for key in keys:
            self._adds.pop(key, None)
            self._useless.pop(key, None)
            self._deletes[key] = None

    def sweep(self, keys: Iterable[str]) -> None:
        """Take them out some time: they are good for nothing already."""
        for key in keys:
            # One that has not been sent never needs to be taken out.
            if self._adds.pop(key, None) is None or key in self._deletes:
                self._useless[key] = None

    def end_lease(self, lease: str) -> None:
        """Whatever depends on *lease* is no longer good. So all that waits for it need not be sent."""
        self._ended_leases.append(lease)
        self._adds.clear()
        self._useless |= self._deletes
        self._deletes.clear()

    def take(self, *, with_useless: bool) -> list[str]:
        """Commands for one line, the most urgent first."""
        commands = [f"del map {self._leases} {lease}" for lease in self._ended_leases]
        self._ended_leases.clear()
        size = sum(map(len, commands))
        for key in list(self._deletes):
            if size > LINE_BYTES:
                return commands
            del self._deletes[key]
            commands.append(command := f"del map {self._decisions} {key}")
            size += len(command)
        for key, text in list(self._adds.items()):
            command = f"add map {self._decisions} {key} {text}"
            if size + len(command) > LINE_BYTES:
                return commands
            del self._adds[key]
            commands.append(command)
            size += len(command)
        if with_useless:
            commands += [f"del map {self._decisions} {key}" for key in self._take_useless()]
        return commands

    def _take_useless(self) -> list[str]:
        keys = list(self._useless)[:USELESS_AT_ONCE]
        for key in keys:
            del self._useless[key]
        return keys


def line(commands: Sequence[str]) -> bytes:
    """All *commands* as one line."""
    for command in commands:
        if not all(map(_WORD.fullmatch, command.split(" "))):
            raise ValueError("a command has a word that could mean something else")
    return (";".join(commands) + "\n").encode("ascii")


def check_output(output: bytes) -> bool:
    """Whether the first command has found its entry; raises `RuntimeRefusal` if one was refused."""
    lines = output.decode("ascii", "replace").splitlines()
    for text in lines:
        if text not in _HARMLESS and text != NOT_FOUND:
            raise RuntimeRefusal(text[:100])
    return NOT_FOUND not in lines
