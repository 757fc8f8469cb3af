"""What a run is given and what comes of it: streams, limits, outcome. Values without behaviour."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from enum import Enum


class Stdin(Enum):
    """What the child reads when it is not given bytes: ``/dev/null``, or what we read ourselves."""

    NOTHING = "nothing"
    INHERIT = "inherit"


# As `subprocess` spells it.
STDIN = {Stdin.NOTHING: subprocess.DEVNULL, Stdin.INHERIT: None}


class Stderr(Enum):
    """Where the child's messages go.

    TEE: to our own stderr as they come, and their tail into the `Outcome`. INHERIT: the child has our own
    stderr, which may be a terminal, and there is no tail. CAPTURE: the tail, and nowhere else.
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
    """How long and how much. `seconds` is None where there is no limit: a person is typing.

    `linger_seconds`: how long to read on after the child's end while a process it left behind holds its
    stdout. `grace_seconds`: from SIGTERM to SIGKILL. `notice_seconds`: from one `while_waiting` to the next.
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
    """How a run ended. `exit_code` is negative when a signal ended the child, ours included."""

    exit_code: int
    # A plugin's stdout is a credential, and its stderr may quote one.
    stdout: bytes = field(repr=False)
    stderr_tail: bytes = field(repr=False)
    ending: Ending


# Finds the file of a command. Called before `start.run`, which never searches.


def find_executable(command: str, *, path: str | None = None) -> str | None:
    """The file that *command* names, or None.

    A bare name is looked up in *path*, which is this program's own PATH unless given; the PATH that the
    child will see plays no part. A name with a separator is returned as it is, whether it exists or not:
    starting it tells more precisely what is wrong.
    """
    if os.path.dirname(command):
        return command
    places = os.environ.get("PATH", os.defpath) if path is None else path
    # A program that is given secrets is not picked up from whatever directory we happen to stand in:
    # like Go's LookPath, we look in absolute directories only. The second check is for Windows, where
    # `which` looks in the current directory unasked.
    absolute = os.pathsep.join(place for place in places.split(os.pathsep) if os.path.isabs(place))
    executable = shutil.which(command, path=absolute)
    return executable if executable is not None and os.path.isabs(executable) else None


def as_path(executable: str) -> str:
    """A name without a separator as a path: otherwise Popen would search the PATH of the child for it."""
    return executable if os.path.dirname(executable) else os.path.join(os.curdir, executable)
