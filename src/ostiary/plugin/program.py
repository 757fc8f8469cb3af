"""Runs a plugin's function as a whole program: the part that exec plugins and credential providers share.

reserve stdout -> answer -> print it, at once
                    |
                    +-> any exception: one message on stderr, exit code 1
"""

from __future__ import annotations

import inspect
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import printable
from ostiary.errors import OstiaryError
from ostiary.plugin.stdout import ReservedStdout

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
    from ostiary.core.secrets.redact import redact

    text = redact(str(error))
    _say(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    if not debug:
        _say(f"set {DEBUG_VARIABLE}=1 to see where")


def _say(message: str) -> None:
    name = os.path.basename(sys.argv[0]) or "exec plugin"
    if sys.stderr is not None:
        print(f"{printable(name)}: {printable(message)}", file=sys.stderr)  # noqa: T201
