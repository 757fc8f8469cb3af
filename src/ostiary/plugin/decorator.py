"""Makes a whole program of an exec plugin's function.

read the exec info -> the function -> encode -> judge our own answer -> `program` prints it
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.plugin.exec_info import ExecInfo, load_from_env
from ostiary.plugin.outcome import Result, answer_of, unusable
from ostiary.plugin.program import PluginProgram, await_result
from ostiary.wire.client_authentication import AnswerRefused, decode_answer, encode_answer

Function: TypeAlias = "Callable[[ExecInfo], Result | Awaitable[Result]]"


def exec_plugin(function: Function) -> Program:
    """Decorates ``def main(info)``, or ``async def main(info)``, that returns a `Token` or a `Certificate`."""
    return Program(function)


class Program(PluginProgram):
    """A plugin, ready to be run once: ``main()``. `answer` is the same without touching the process."""

    __name__: str
    __wrapped__: Function

    def __init__(self, function: Function) -> None:
        self._function = function
        functools.update_wrapper(self, function)

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
