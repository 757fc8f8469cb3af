"""One upstream as a provider reads it: whole answers, and answers that go on line by line, such as a watch.

Made by `upstream.following.followers`. It has connections of its own: what users do at the upstream cannot take them,
and what is followed takes none of theirs. The credential is the gateway's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary.gateway.config.settings import IdentityMode, UpstreamConfig
from ostiary.gateway.http1.client.connection import UpstreamConnection
from ostiary.gateway.http1.client.framing import Framing
from ostiary.gateway.http1.client.receiver import UpstreamLost
from ostiary.gateway.http1.headers import Headers
from ostiary.gateway.upstream.api_plugins.watching import GATEWAY_USER, JSON_ONLY
from ostiary.gateway.upstream.own_requests import OwnRequests, request_head
from ostiary.gateway.upstream.upstreams import Upstream
from ostiary.interfaces.admission import UpstreamAnswer

# Four watches, and a list beside each of them.
CONNECTIONS = 8
ANSWER_SECONDS = 30.0
# Of a refusal in the place of lines. It is a Status.
LARGEST_REFUSAL = 64 * 1024
# What has come and was not taken yet; beyond it the upstream must wait.
MOST_WAITING = 1024 * 1024
# How many lines are handed over at once, so that whoever takes them does not hold up the event loop.
MOST_IN_BATCH = 200


class FollowedUpstream:
    """Implements `ostiary.interfaces.upstream_abilities.following.UpstreamReader`."""

    def __init__(
        self,
        configured: UpstreamConfig,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._upstream = Upstream(replace(configured, connections=CONNECTIONS), loop, clock)
        self._requests = OwnRequests({}, seconds=seconds)
        self._loop = loop
        self._seconds = seconds
        self._user = GATEWAY_USER if configured.identity is IdentityMode.REQUEST_HEADER else None

    async def get(self, target: str, *, largest: int) -> UpstreamAnswer:
        sent = self._credential()
        answer = await self._requests.ask_place(
            self._upstream, target, headers=JSON_ONLY, user=self._user, largest=largest
        )
        self._note_status(answer.status, sent)
        return answer

    @asynccontextmanager
    async def read_lines(self, target: str, *, longest: int, silence: float) -> AsyncIterator[ReceivedLines]:
        sent = self._credential()
        head = request_head(self._upstream, target, "GET", JSON_ONLY, b"", self._user)
        lines = ReceivedLines(self._loop, longest=longest, silence=silence)
        try:
            try:
                async with asyncio.timeout(self._seconds):
                    # Never a connection that was idle: it may have died, and a watch is not asked for twice.
                    self._upstream.pool.acquire(
                        lambda found, error: lines.take_connection(found, error, head), fresh=True
                    )
                    await lines.begun.wait()
            except TimeoutError:
                raise _failure("it did not answer in time") from None
            lines.raise_failure()
            self._note_status(200 if lines.answer is None else lines.answer.status, sent)
            yield lines
        finally:
            lines.give_up()

    def tick(self, now: float) -> None:
        self._upstream.tick(now)

    def close(self) -> None:
        self._upstream.pool.close()

    def _credential(self) -> bytes:
        try:
            return self._upstream.credential()
        except OSError:
            raise _failure("the gateway's own credential cannot be read") from None

    def _note_status(self, status: int, sent: bytes) -> None:
        if status == 401:
            # What the files hold now is used the next time.
            self._upstream.renewed_credential(sent)


def _failure(cause: str) -> ProviderError:
    return ProviderError("an upstream could not be asked", cause=cause)


class ReceivedLines:
    """One answer, line by line. `begun` is set when its head has come, or all of it, or nothing will."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, longest: int, silence: float) -> None:
        self.begun = asyncio.Event()
        self.answer: UpstreamAnswer | None = None
        self._longest, self._silence = longest, silence
        self._news = asyncio.Event()
        self._connection: UpstreamConnection | None = None
        self._failure: UpstreamLost | None = None
        self._ended = False
        self._given_up = False
        self._status = 0
        self._lines: list[bytes] = []
        self._waiting = 0
        # The beginning of a line whose end has not come.
        self._parts: list[bytes] = []
        self._size = 0

    # --- whoever reads calls these ---

    async def batches(self) -> AsyncIterator[list[bytes]]:
        while True:
            if self._lines:
                batch, self._lines = self._lines[:MOST_IN_BATCH], self._lines[MOST_IN_BATCH:]
                self._waiting -= sum(map(len, batch))
                if self._connection is not None and self._waiting <= MOST_WAITING:
                    self._connection.resume()
                yield batch
                continue
            if self._ended:
                return
            self.raise_failure()
            self._news.clear()
            try:
                async with asyncio.timeout(self._silence):
                    await self._news.wait()
            except TimeoutError:
                raise _failure(f"nothing came for {self._silence:g} seconds") from None

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise _failure(str(self._failure))

    def give_up(self) -> None:
        self._given_up = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    # --- the connection calls these ---

    def take_connection(self, connection: UpstreamConnection | None, error: UpstreamLost | None, head: bytes) -> bool:
        if self._given_up:
            return False
        if connection is None:
            self.upstream_lost(error or UpstreamLost("it cannot be reached", answered=False))
        else:
            self._connection = connection
            connection.send(head, self, is_head=False)
        return True

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        self._connection = None
        self._status = status
        if status == 200:
            self._take(body)
        else:
            self._parts = [body]
        self.response_end([])

    def response_head(self, status: int, headers: Headers, framing: Framing) -> None:
        self._status = status
        if status == 200:
            self.begun.set()

    def response_informational(self, status: int, headers: Headers) -> None:
        pass

    def response_body(self, data: bytes) -> None:
        if self._status == 200:
            self._take(data)
            return
        self._size += len(data)
        if self._size <= LARGEST_REFUSAL:
            self._parts.append(data)
        else:
            self._fail("its answer is too large")

    def response_flush(self) -> None:
        pass

    def response_end(self, trailers: Headers) -> None:
        self._connection = None
        if self._status != 200:
            self.answer = UpstreamAnswer(self._status, "", b"".join(self._parts))
        self._ended = True
        self._wake()

    def response_switched(self, rest: bytes) -> None:
        self._fail("it switched protocols without being asked")

    def upstream_lost(self, error: UpstreamLost) -> None:
        self._connection = None
        self._failure = self._failure or error
        self._wake()

    def upstream_full(self) -> None:
        pass

    def upstream_ready(self) -> None:
        pass

    # --- inside ---

    def _take(self, data: bytes) -> None:
        first, *rest = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        for part in rest:
            self._complete_line()
            self._parts.append(part)
            self._size += len(part)
        if self._size > self._longest:
            self._fail("it sent a line that is too long")
            return
        if self._waiting > MOST_WAITING and self._connection is not None:
            self._connection.pause()
        if self._lines:
            self._news.set()

    def _complete_line(self) -> None:
        line = b"".join(self._parts)
        self._parts, self._size = [], 0
        if line:
            self._lines.append(line)
            self._waiting += len(line)

    def _fail(self, message: str) -> None:
        self.give_up()
        self._lines, self._parts = [], []
        self.upstream_lost(UpstreamLost(message, answered=True))

    def _wake(self) -> None:
        self.begun.set()
        self._news.set()
