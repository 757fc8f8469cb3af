"""The program around a plugin's function, shared by exec plugins and credential providers.

reserve stdout -> call the function -> print the result
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

# A client parses the plugin's stdout as one object, which output of a library or of a child process would corrupt. File
# descriptor 1 is therefore moved before the plugin's code runs, and then points to stderr, in this process and its
# children.

FIRST_FREE = 3


class ReservedStdout:
    """The original stdout. It is never restored, so that exit handlers cannot write to it."""

    def __init__(self) -> None:
        if sys.__stdout__ is None:
            raise OSError("stdout is closed, and the answer must go there")
        # Above 2, even if a lower descriptor is free; and closed in child processes.
        self._descriptor = copy_above(1, FIRST_FREE)
        _lead_stdout_to_stderr()
        # Text that is still buffered goes to stderr as well.
        for stream in (sys.stdout, sys.__stdout__):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
            if stream is not None:
                stream.flush()

    def send(self, answer: str) -> None:
        data = memoryview(answer.encode())
        while data:
            data = data[os.write(self._descriptor, data) :]
        # The client may wait for end of file before it parses the output.
        os.close(self._descriptor)


def copy_above(descriptor: int, first: int) -> int:
    """Return a copy of *descriptor* whose number is *first* or higher."""
    low: list[int] = []
    try:
        # Not F_DUPFD, which Windows lacks. A copy by `os.dup` is not inherited.
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
        # stderr is closed, too.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


DEBUG_VARIABLE = "OSTIARY_DEBUG"
INTERRUPTED = 130


class PluginProgram(ABC):
    """A plugin that runs once when called."""

    def __call__(self, *, environ: Mapping[str, str] | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Run the plugin and print its output. Exits with `SystemExit` on errors.

        From then on until the process ends, all other output goes to stderr.
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
        """Return the text to print. Raises errors unchanged."""


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
    # Lazy import, needed only for errors.
    from ostiary.core.redaction import redact

    text = redact(str(error))
    _say(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    if not debug:
        _say(f"set {DEBUG_VARIABLE}=1 to see where")


def _say(message: str) -> None:
    name = os.path.basename(sys.argv[0]) or "exec plugin"
    if sys.stderr is not None:
        print(f"{printable(name)}: {printable(message)}", file=sys.stderr)  # noqa: T201
