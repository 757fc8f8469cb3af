"""The rest of a request that has its answer is read and dropped, up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from ostiary_gateway.http1.request_head import ServerLimits
from ostiary_gateway.http1.server_connection import DISCARD_LIMIT
from tests.support.http1 import chunked, connected, get, listening, until
from tests.support.http1_server import POST, Held, at_once

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]


async def test_the_rest_of_a_refused_body_is_dropped_and_the_connection_goes_on() -> None:
    async with listening(at_once) as listener, connected(listener.port) as client:
        client.send(get("/a", "Content-Length: 100000", method="POST"))
        assert (await client.answer()).status == 401
        client.send(b"x" * 100_000)
        assert (await client.ask(get("/b"))).status == 401
        assert len(listener.exchanges) == 2


async def test_a_refused_body_is_read_before_a_close_so_that_the_answer_arrives() -> None:
    async with listening(at_once) as listener, connected(listener.port) as client:
        request = get("/a", "Content-Length: 200000", "Connection: close", method="POST")
        client.send(request + b"x" * 200_000)
        assert (await client.answer()).status == 401
        assert await client.closed()


async def test_a_refused_body_without_end_is_not_read_for_ever() -> None:
    async with listening(at_once) as listener, connected(listener.port) as client:
        client.send(get("/a", f"Content-Length: {DISCARD_LIMIT * 100}", method="POST"))
        assert (await client.answer()).status == 401

        async def upload() -> None:
            for _ in range(100):
                client.send(b"x" * DISCARD_LIMIT)
                await client.writer.drain()

        with pytest.raises(ConnectionError):
            await upload()
        await until(lambda: not listener.connections)


async def test_a_broken_body_after_the_answer_does_not_take_the_answer_back() -> None:
    async with listening(at_once) as listener, connected(listener.port) as client:
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        await until(lambda: bool(listener.exchanges))
        client.send(b"zz\r\n")
        assert (await client.answer()).status == 401
        assert await client.closed()


@pytest.mark.parametrize("framing", ["Content-Length: 2000", "Transfer-Encoding: chunked"])
async def test_a_body_above_the_limit_is_too_large(framing: str) -> None:
    held = Held()
    async with listening(held, ServerLimits(body_bytes=1000)) as listener, connected(listener.port) as client:
        client.send(get("/a", framing, method="POST"))
        if "chunked" in framing:
            await until(lambda: bool(held.exchanges))
            held.exchanges[0].accept_body(held)
            client.send(chunked(b"x" * 600, b"x" * 600))
        assert (await client.answer()).status == 413
        assert await client.closed()


async def test_above_the_limit_of_connections_the_next_one_is_told_so() -> None:
    async with listening(limits=ServerLimits(connections=1)) as listener, connected(listener.port) as first:
        assert (await first.ask(get("/a"))).status == 200
        async with connected(listener.port) as second:
            assert (await second.answer()).status == 503
            assert await second.closed()
        await until(lambda: len(listener.connections) == 1)
        assert (await first.ask(get("/b"))).status == 200
