"""Messages between the workers of one gateway, relayed by the supervisor: newline-delimited JSON over a socket pair.

    request        {"ask": name, "id": n, "data": ...}  ->  {"id": n, "data": ...}
    notification   {"tell": name, "data": ...}

The supervisor queries the state of its workers. Workers exchange what the token store cannot carry. The data is any
JSON value, so it is an `object` here; `worker_messages` declares the type for each name.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Protocol

ASK_SECONDS = 2.0
LONGEST_LINE = 16 * 1024 * 1024
NOT_RELOADED = "the configuration was not reloaded"
# Request of a worker to its supervisor. The timeout allows for a machine that is busy starting workers.
CONFIGURATION = "configuration"
CONFIGURATION_SECONDS = 60.0
TICKET_KEYS = "ticket-keys"
# Notification of a worker to its supervisor when it begins to serve requests.
SERVING = "serving"

log = logging.getLogger("ostiary.gateway")

# Handles a request, given its name and data, and returns the result.
AnswerQuestion = Callable[[str, object], Awaitable[object]]
Message = dict[str, object]


class Channel:
    """One end of the socket. `run` serves incoming messages until the peer closes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: AnswerQuestion) -> None:
        self._reader, self._writer = reader, writer
        self._answer = answer
        # The pending requests by id.
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def answer_by(self, answer: AnswerQuestion) -> None:
        """Replace the handler of the peer's requests by *answer*."""
        self._answer = answer

    async def ask(self, question: str, data: object = None, *, seconds: float = ASK_SECONDS) -> object:
        """Send a request and return its result, or None if the peer does not respond within *seconds*."""
        self._number += 1
        number = self._number
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"ask": question, "id": number, "data": data})
            return await asyncio.wait_for(answer, seconds)
        except (OSError, TimeoutError):
            return None
        finally:
            del self._waiting[number]

    def tell(self, what: str, data: object) -> None:
        """Send a message without a response. Delivery is not guaranteed."""
        with suppress(OSError):
            self._send({"tell": what, "data": data})

    async def run(self) -> None:
        while line := await self._reader.readline():
            try:
                self._dispatch(_message(json.loads(line)))
            except (ValueError, KeyError, TypeError):
                log.error("invalid message between workers")

    def close(self) -> None:
        self._writer.close()

    def _send(self, message: Message) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    def _dispatch(self, message: Message) -> None:
        """Handle a request or a notification, or deliver a response to its pending request."""
        data = message.get("data")
        if "ask" in message:
            self._start(self._reply(_text(message["ask"]), _number(message["id"]), data))
        elif "tell" in message:
            self._start(self._hear(_text(message["tell"]), data))
        else:
            waiting = self._waiting.get(_number(message["id"]))
            # The caller may have timed out already.
            if waiting is not None and not waiting.done():
                waiting.set_result(data)

    async def _reply(self, question: str, number: int, data: object) -> None:
        answer = None
        try:
            answer = await self._answer(question, data)
        except Exception as error:
            log.error("a request of another process could not be answered", extra={"cause": type(error).__name__})
        with suppress(OSError):
            self._send({"id": number, "data": answer})

    async def _hear(self, what: str, data: object) -> None:
        try:
            await self._answer(what, data)
        except Exception as error:
            log.error("a message of another process could not be used", extra={"cause": type(error).__name__})

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _message(value: object) -> Message:
    if not isinstance(value, dict):
        raise TypeError("a message is an object")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is a text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError("an id is a number")
    return value


class Workers(Protocol):
    """The other workers of this gateway."""

    async def ask(self, question: str, data: object) -> list[object]:
        """Return the results of the workers that responded with one."""

    def tell(self, what: str, data: object) -> None: ...


class NoOtherWorkers:
    """`Workers` of a gateway with a single worker."""

    async def ask(self, question: str, data: object) -> list[object]:
        return []

    def tell(self, what: str, data: object) -> None:
        pass


class WorkersBySupervisor:
    """The other workers, reached through the supervisor."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def ask(self, question: str, data: object) -> list[object]:
        answers = await self._channel.ask("siblings", {"ask": question, "data": data})
        return answers if isinstance(answers, list) else []

    def tell(self, what: str, data: object) -> None:
        self._channel.tell("siblings", {"tell": what, "data": data})
