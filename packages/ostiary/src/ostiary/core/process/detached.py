"""Starts a program of ours that outlives this process and has none of its pipes, where there is no fork."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

# On Windows: a process without a console window, in its own group, so that Ctrl-C in the terminal does not reach it.
_DETACHED = getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


def start_detached(command: Sequence[str]) -> int:
    """Start *command* without supervising it. Returns its process id."""
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=nowhere, stdout=nowhere, stderr=nowhere, close_fds=True, creationflags=_DETACHED
    )
    # It is not waited for: without this the interpreter would warn when it drops the object.
    process.returncode = 0
    return process.pid
