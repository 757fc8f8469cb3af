"""Runs a plugin's function as a whole program: the part that exec plugins and credential providers share.

reserve stdout -> answer -> print it, at once
                    |
                    +-> any exception: one message on stderr, exit code 1
"""

from __future__ import annotations

import inspect
import io
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import printable
from ostiary.errors import OstiaryError

# Keeps stdout for the answer alone.
#
# A client reads the plugin's stdout as one object; a progress bar, a library's greeting or a child that says
# "done" would spoil it. So file descriptor 1 is moved aside before the plugin's own code runs, and from then
# on leads to stderr, for this process and for those it starts.

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


DEBUG_VARIABLE = "OSTIARY_DEBUG"
INTERRUPTED = 130


class PluginProgram(ABC):
    """A plugin, ready to be run once by calling it."""

    def __call__(self, *, environ: Mapping[str, str] | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Run the plugin, print its answer, and leave by `SystemExit` if there is none.

        From here to the end of the process, what anybody prints goes to stderr.
        """
        variables = os.environ if environ is None else environ
        try:
            stdout = ReservedStdout()
            stdout.send(self.answer(variables, clock=clock))
        except SystemExit as left:
            _leave(left)
        except KeyboardInterrupt:
            _say("interrupted")
            sys.exit(INTERRUPTED)
        except Exception as error:
            _explain(error, debug=bool(variables.get(DEBUG_VARIABLE)))
            sys.exit(1)

    @abstractmethod
    def answer(self, environ: Mapping[str, str], *, clock: Clock = SYSTEM_CLOCK) -> str:
        """What is printed; raises what went wrong."""


def await_result(result: object) -> object:
    if not inspect.isawaitable(result):
        return result
    import asyncio

    async def wait() -> object:
        return await result

    return asyncio.run(wait())


def _leave(left: SystemExit) -> None:
    if left.code is None or left.code == 0:
        _say("it ended without an answer")
        sys.exit(1)
    raise left


def _explain(error: Exception, *, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, OstiaryError):
        _say(str(error))
        return
    # Imported here: it is needed only when something has gone wrong.
    from ostiary.core.redaction import redact

    text = redact(str(error))
    _say(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    if not debug:
        _say(f"set {DEBUG_VARIABLE}=1 to see where")


def _say(message: str) -> None:
    name = os.path.basename(sys.argv[0]) or "exec plugin"
    if sys.stderr is not None:
        print(f"{printable(name)}: {printable(message)}", file=sys.stderr)  # noqa: T201
