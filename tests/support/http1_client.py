"""Asks an upstream through a pool and writes down what the sender of a request hears; for tests of the connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from ostiary_gateway.http1.client_connection import UpstreamAddress, UpstreamConnection
from ostiary_gateway.http1.client_pool import Pool
from ostiary_gateway.http1.response import Framing, UpstreamLost
from tests.support.http1 import SECONDS, Upstream, Upstreamed, turn

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"


class Recorder:
    """A receiver that writes down what it is told."""

    def __init__(self) -> None:
        self.status = 0
        self.framing = -1
        self.interim: list[int] = []
        self.body = b""
        self.trailers: list[tuple[bytes, bytes]] = []
        self.rest = b""
        self.over: asyncio.Future[UpstreamLost | None] = asyncio.get_running_loop().create_future()
        self.connection: UpstreamConnection | None = None

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        assert not self.status
        self.status, self.framing, self.body = status, Framing.LENGTH, body
        self.over.set_result(None)

    def response_head(self, status: int, headers: list[tuple[bytes, bytes]], framing: Framing) -> None:
        assert not self.status
        self.status, self.framing = status, framing.kind

    def response_informational(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert not self.status
        self.interim.append(status)

    def response_body(self, data: bytes) -> None:
        assert self.status
        self.body += data

    def response_flush(self) -> None:
        assert not self.over.done()

    def response_end(self, trailers: list[tuple[bytes, bytes]]) -> None:
        self.trailers = trailers
        self.over.set_result(None)

    def response_switched(self, rest: bytes) -> None:
        self.rest = rest
        self.over.set_result(None)

    def upstream_lost(self, error: UpstreamLost) -> None:
        self.over.set_result(error)

    def upstream_full(self) -> None: ...

    def upstream_ready(self) -> None: ...

    # --- for the tests ---

    def ready(self, connection: UpstreamConnection | None, error: UpstreamLost | None) -> bool:
        """Sends a GET over whatever connection it gets."""
        if connection is None:
            self.over.set_result(error)
        else:
            self.connection = connection
            connection.send(GET, self, is_head=False)
        return True

    async def end(self) -> UpstreamLost | None:
        return await asyncio.wait_for(asyncio.shield(self.over), SECONDS)


@asynccontextmanager
async def pool_to(made: Upstream, **options: Any) -> AsyncIterator[Pool]:
    pool = Pool(UpstreamAddress("127.0.0.1", made.port), asyncio.get_running_loop(), **options)
    try:
        yield pool
    finally:
        pool.close()
        for connection in list(pool.connections):
            connection.abandon()
        await turn()


def answering(*parts: bytes, then: str = "wait") -> Callable[[Upstreamed], Coroutine[Any, Any, None]]:
    """Answers each request with *parts*, each in a segment of its own, and then waits, closes or resets."""

    async def script(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            for part in parts:
                connection.send(part)
                await connection.writer.drain()
                await turn(8)
            if then == "close":
                return
            if then == "reset":
                connection.reset()
                return

    return script


async def ask(pool: Pool, *, is_head: bool = False) -> Recorder:
    recorder = Recorder()

    def ready(connection: UpstreamConnection | None, error: UpstreamLost | None) -> bool:
        if connection is None:
            recorder.over.set_result(error)
            return True
        recorder.connection = connection
        connection.send(GET, recorder, is_head=is_head)
        return True

    pool.acquire(ready)
    await recorder.end()
    return recorder
