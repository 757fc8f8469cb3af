"""Inputs and result of a process run: streams, limits, outcome."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from enum import Enum


class Stdin(Enum):
    """What the child reads unless it is given bytes: ``/dev/null``, or our own stdin."""

    NOTHING = "nothing"
    INHERIT = "inherit"


# The same values for `subprocess`.
STDIN = {Stdin.NOTHING: subprocess.DEVNULL, Stdin.INHERIT: None}


class Stderr(Enum):
    """Where the child's stderr goes.

    TEE: to our own stderr as it is written, and its tail into the `Outcome`. INHERIT: the child has our own stderr,
    which may be a terminal, and there is no tail. CAPTURE: only the tail.
    """

    TEE = "tee"
    INHERIT = "inherit"
    CAPTURE = "capture"


class Ending(Enum):
    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed out"
    TOO_MUCH_OUTPUT = "too much output"


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Time and size limits of a run. `seconds` is None for no limit, as while a user is typing.

    `linger_seconds`: how long to read on after the child's end while a process it left behind keeps its stdout open.
    `grace_seconds`: from SIGTERM to SIGKILL. `notice_seconds`: the interval of `while_waiting` calls.
    """

    seconds: float | None = 60.0
    stdout_bytes: int = 1 << 20
    stderr_tail_bytes: int = 8192
    linger_seconds: float = 0.25
    grace_seconds: float = 1.0
    notice_seconds: float = 10.0


DEFAULT_LIMITS = RunLimits()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `exit_code` is negative if a signal ended the child, including our own."""

    exit_code: int
    # A plugin's stdout is a credential, and its stderr may quote one.
    stdout: bytes = field(repr=False)
    stderr_tail: bytes = field(repr=False)
    ending: Ending


def find_executable(command: str, *, path: str | None = None) -> str | None:
    """Return the file that *command* names, or None.

    A bare name is looked up in *path*, by default our own PATH; the PATH in the child's environment is not used. A name
    with a separator is returned unchanged, whether it exists or not: the error on starting it is more precise.
    """
    if os.path.dirname(command):
        return command
    places = os.environ.get("PATH", os.defpath) if path is None else path
    # Do not run a program that is given secrets from the current directory: like Go's LookPath, search absolute
    # directories only. The second check is for Windows, where `which` also searches the current directory.
    absolute = os.pathsep.join(place for place in places.split(os.pathsep) if os.path.isabs(place))
    executable = shutil.which(command, path=absolute)
    return executable if executable is not None and os.path.isabs(executable) else None


def as_path(executable: str) -> str:
    """Return a name without a separator as a path: otherwise Popen would search the child's PATH for it."""
    return executable if os.path.dirname(executable) else os.path.join(os.curdir, executable)
