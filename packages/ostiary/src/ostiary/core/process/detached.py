"""Starts a program of our own that outlives this process and has none of its pipes, where there is no fork."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

# Of Windows: a process without a console window, in a group of its own. Ctrl-C in the terminal is not for it.
_DETACHED = getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


def start_detached(command: Sequence[str]) -> int:
    """Start *command* and forget about it; its number."""
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=nowhere, stdout=nowhere, stderr=nowhere, close_fds=True, creationflags=_DETACHED
    )
    # Nobody waits for it: without this the interpreter would complain when it drops the object.
    process.returncode = 0
    return process.pid
