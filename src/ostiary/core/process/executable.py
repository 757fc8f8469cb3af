"""Finds the file of a command. Called before `start.run`, which never searches."""

from __future__ import annotations

import os
import shutil


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
