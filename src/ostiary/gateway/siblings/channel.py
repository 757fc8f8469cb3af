"""Between a worker and its supervisor: lines of JSON on a socket, questions and answers in both directions.

    {"ask": name, "id": n, "data": ...}  ->  {"id": n, "data": ...}      {"tell": name, "data": ...}  ->  nothing

Called by the supervisor, which asks its workers how they are, and by workers, which tell each other what the token
store cannot carry. Nobody waits for long: one who does not answer has no answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

ASK_SECONDS = 2.0
LONGEST_LINE = 16 * 1024 * 1024

log = logging.getLogger("ostiary.gateway")

# Answers a question, by its name and with its data.
Answer = Callable[[str, Any], Awaitable[Any]]


class Channel:
    """One end of it. `run` reads until the other end is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        self._reader, self._writer = reader, writer
        self._answer = answer
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def answer_by(self, answer: Answer) -> None:
        """From now on, questions of the other end are answered by *answer*."""
        self._answer = answer

    async def ask(self, question: str, data: Any = None, *, seconds: float = ASK_SECONDS) -> Any:
        """The answer; None from an end that does not answer."""
        self._number += 1
        number = self._number
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"ask": question, "id": number, "data": data})
            return await asyncio.wait_for(waiting, seconds)
        except (OSError, TimeoutError):
            return None
        finally:
            del self._asked[number]

    def tell(self, what: str, data: Any) -> None:
        """Nobody learns whether it arrived."""
        with suppress(OSError):
            self._send({"tell": what, "data": data})

    async def run(self) -> None:
        while line := await self._reader.readline():
            try:
                self._arrived(json.loads(line))
            except (ValueError, KeyError, TypeError):
                log.error("invalid message between workers")

    def close(self) -> None:
        self._writer.close()

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    def _arrived(self, message: dict[str, Any]) -> None:
        data = message.get("data")
        if "ask" in message:
            self._start(self._reply(message["ask"], message["id"], data))
        elif "tell" in message:
            self._start(self._hear(message["tell"], data))
        else:
            waiting = self._asked.get(message["id"])
            # An answer that comes too late is nobody's.
            if waiting is not None and not waiting.done():
                waiting.set_result(data)

    async def _reply(self, question: str, number: int, data: Any) -> None:
        answer = None
        try:
            answer = await self._answer(question, data)
        except Exception as error:
            log.error("a request of another process could not be answered", extra={"cause": type(error).__name__})
        with suppress(OSError):
            self._send({"id": number, "data": answer})

    async def _hear(self, what: str, data: Any) -> None:
        try:
            await self._answer(what, data)
        except Exception as error:
            log.error("a message of another process could not be used", extra={"cause": type(error).__name__})

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Siblings(Protocol):
    """The other workers of this gateway."""

    async def ask(self, question: str, data: Any) -> list[Any]:
        """What each of them answers; those that have none are left out."""

    def tell(self, what: str, data: Any) -> None: ...


class NoSiblings:
    """For a worker that is alone."""

    async def ask(self, question: str, data: Any) -> list[Any]:
        return []

    def tell(self, what: str, data: Any) -> None:
        pass


class SiblingsBySupervisor:
    """The others, through the supervisor that has started all of them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def ask(self, question: str, data: Any) -> list[Any]:
        return await self._channel.ask("siblings", {"ask": question, "data": data}) or []

    def tell(self, what: str, data: Any) -> None:
        self._channel.tell("siblings", {"tell": what, "data": data})
