"""Makes a whole program of a plugin's function.

reserve stdout -> read the exec info -> the function -> encode -> judge our own answer -> print it, at once
                                            |
                                            +-> any exception: one message on stderr, exit code 1
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import printable
from ostiary.errors import OstiaryError
from ostiary.plugin.exec_info import ExecInfo, load_from_env
from ostiary.plugin.outcome import Result, answer_of, unusable
from ostiary.plugin.stdout import ReservedStdout
from ostiary.wire.client_authentication import AnswerRefused, decode_answer, encode_answer

Function: TypeAlias = "Callable[[ExecInfo], Result | Awaitable[Result]]"

DEBUG_VARIABLE = "OSTIARY_DEBUG"
INTERRUPTED = 130


def exec_plugin(function: Function) -> Program:
    """Decorates ``def main(info)``, or ``async def main(info)``, that returns a `Token` or a `Certificate`."""
    return Program(function)


class Program:
    """A plugin, ready to be run once: ``main()``. `answer` is the same without touching the process."""

    __name__: str
    __wrapped__: Function

    def __init__(self, function: Function) -> None:
        self._function = function
        functools.update_wrapper(self, function)

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

    def answer(self, environ: Mapping[str, str], *, clock: Clock = SYSTEM_CLOCK) -> str:
        """What a client that sets *environ* would be answered; raises what went wrong. For tests of plugins."""
        info = load_from_env(environ)
        answer = answer_of(await_result(self._function(info)), now=clock.now())
        text = encode_answer(answer, api_version=info.api_version, as_proposed=info.as_proposed)
        if not _is_utf8(text):
            raise unusable("its answer is not UTF-8 text", hint="return text that can be printed")
        try:
            # We take nothing on trust that a client would refuse, least of all from ourselves.
            decode_answer(text.encode(), api_version=info.api_version)
        except AnswerRefused as refused:
            raise unusable(refused.cause, hint=refused.hint) from None
        return text


def _is_utf8(text: str) -> bool:
    # Asked, and not tried: the exception of the encoder carries the text along.
    return not any("\ud800" <= char <= "\udfff" for char in text)


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
