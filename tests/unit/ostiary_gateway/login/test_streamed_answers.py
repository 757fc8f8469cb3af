"""Bodies of /auth that are sent piece by piece: whoever does not read is cut, and a stop ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.login import http_adapter
from ostiary_gateway.login.http_adapter import send_stream
from tests.support.http1 import Listener, connected, get, listening, until


class Streams:
    """Answers with *piece*, again and again; `ended` counts the streams that were closed."""

    def __init__(self, piece: bytes, most: float = float("inf")) -> None:
        self._piece, self._most = piece, most
        self.ended = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, exchange: Exchange) -> None:
        headers = [(b"Content-Type", b"text/event-stream")]
        self._tasks.add(asyncio.get_running_loop().create_task(send_stream(exchange, 200, headers, self._pieces)))

    async def _pieces(self) -> AsyncGenerator[bytes]:
        number = 0
        try:
            while number < self._most:
                number += 1
                await asyncio.sleep(0)
                yield self._piece
        finally:
            self.ended += 1


@asynccontextmanager
async def streaming(streams: Streams) -> AsyncIterator[Listener]:
    async with listening(streams) as listener:
        yield listener


async def test_pieces_arrive_and_the_connection_goes_on() -> None:
    streams = Streams(b"piece", most=3)
    async with streaming(streams) as listener, connected(listener.port) as client:
        for _ in range(2):
            answer = await client.ask(get())
            assert answer.status == 200
            assert answer.body == b"piece" * 3
        assert (await client.ask(get(method="HEAD"), "HEAD")).status == 200
        assert streams.ended == 2, "nobody makes pieces for a HEAD"


async def test_who_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_adapter, "SLOWEST_READ", 0.05)
    streams = Streams(b"x" * 65536)
    async with streaming(streams) as listener, connected(listener.port) as client:
        client.send(get())
        await until(lambda: streams.ended == 1)


async def test_who_goes_away_ends_the_stream() -> None:
    streams = Streams(b"")
    async with streaming(streams) as listener:
        async with connected(listener.port) as client:
            client.send(get())
            await until(lambda: bool(listener.connections))
        await until(lambda: streams.ended == 1)


async def test_a_stop_ends_the_stream_in_order() -> None:
    streams = Streams(b"piece")
    async with streaming(streams) as listener, connected(listener.port) as client:
        client.send(get())
        await until(lambda: bool(listener.connections))
        for connection in listener.connections:
            connection.draining = True
        answer = await client.answer()
        assert answer.body == b"piece" * (len(answer.body) // 5)
        assert streams.ended == 1
