"""Keeps stdout for the answer alone.

A client reads the plugin's stdout as one object; a progress bar, a library's greeting or a child that says
"done" would spoil it. So file descriptor 1 is moved aside before the plugin's own code runs, and from then
on leads to stderr, for this process and for those it starts.
"""

from __future__ import annotations

import io
import os
import sys

FIRST_FREE = 3


class ReservedStdout:
    """The real stdout, out of reach. It is not given back: what an exit handler prints must not reach it."""

    def __init__(self) -> None:
        if sys.__stdout__ is None:
            raise OSError("stdout is closed, and the answer must go there")
        # Above 2, even when one of those is free; and closed in every process that is started from here.
        self._descriptor = copy_above(1, FIRST_FREE)
        _lead_stdout_to_stderr()
        # What was printed before this moment goes to stderr as well, unless it has left the buffer already.
        for stream in (sys.stdout, sys.__stdout__):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
            if stream is not None:
                stream.flush()

    def send(self, answer: str) -> None:
        data = memoryview(answer.encode())
        while data:
            data = data[os.write(self._descriptor, data) :]
        # The client may wait for the end of stdout before it reads the answer.
        os.close(self._descriptor)


def copy_above(descriptor: int, first: int) -> int:
    """A copy of *descriptor* whose number is *first* or higher."""
    low: list[int] = []
    try:
        # Not F_DUPFD, which Windows does not know. A copy by `os.dup` is not inherited.
        while (copy := os.dup(descriptor)) < first:
            low.append(copy)
        return copy
    finally:
        for number in low:
            os.close(number)


def _lead_stdout_to_stderr() -> None:
    try:
        os.dup2(2, 1)
    except OSError:
        # There is no stderr either.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
