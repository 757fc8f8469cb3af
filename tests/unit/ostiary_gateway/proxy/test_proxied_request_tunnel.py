"""After a 101 raw bytes pass both ways, and only after the 101 that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.support.http1 import (
    Client,
    Upstreamed,
    get,
    turn,
    until,
)
from tests.support.proxied import HI, SWITCH, UPGRADE, between, dies, says, tunnel

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]


@LOOPS
def test_after_a_101_bytes_pass_both_ways_and_what_was_sent_ahead_is_not_lost(run: Run) -> None:
    """P5."""

    async def main() -> None:
        async with between(tunnel(ahead=b"first words")) as b:
            b.client.send(UPGRADE + b"from the start")
            answer = await b.client.answer()
            assert (answer.status, answer.one("Upgrade"), answer.one("X-Own")) == (101, b"WebSocket", b"1")
            assert await b.client.exactly(11) == b"first words"
            assert await b.client.exactly(14) == b"FROM THE START"
            b.client.send(b"x" * 1_000_000)
            assert await b.client.exactly(1_000_000) == b"X" * 1_000_000
            assert b.gate.finished == []
            # A tunnel is no idle connection.
            b.gate.later(1e9)
            b.listener.later(1e9)
            b.client.send(b"still")
            assert await b.client.exactly(5) == b"STILL"

    run(main())


async def test_bytes_ahead_of_the_101_wait_for_it_and_are_bounded() -> None:
    """P5. Until the upstream has switched they could be read as a request."""
    go_on = asyncio.Event()

    async def script(connection: Upstreamed) -> None:
        await connection.head()
        await go_on.wait()
        assert connection.raw.endswith(b"\r\n\r\n")
        connection.send(SWITCH)
        while await connection.reader.read(65536):
            pass

    async with between(script) as b:
        b.client.send(UPGRADE + b"GET /smuggled HTTP/1.1\r\n\r\n")
        await until(lambda: bool(b.upstream.connections) and bool(b.upstream.connections[0].raw))
        for _ in range(100):
            b.client.send(b"x" * 100_000)
            await turn(2)
        assert not b.listener.connection.transport.is_reading()
        go_on.set()
        assert (await b.client.answer()).status == 101
        await b.client.writer.drain()


async def test_a_client_that_hangs_up_before_the_101_takes_the_upstreams_connection_along() -> None:
    async with between(says(b""), timeout=float("inf")) as b:
        b.client.send(UPGRADE)
        await until(lambda: bool(b.upstream.requests))
        b.client.reset()
        await until(lambda: b.gate.finished == [(0, "")])
        assert not b.gate.pool.connections


NO_TUNNEL = {
    "200": HI,
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
    "another protocol": SWITCH.replace(b"WebSocket", b"h2c"),
    "no protocol": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "two protocols": SWITCH.replace(b"X-Own: 1", b"Upgrade: h2c"),
}


@pytest.mark.parametrize("answer", NO_TUNNEL.values(), ids=NO_TUNNEL.keys())
async def test_only_the_101_that_was_asked_for_opens_a_tunnel(answer: bytes) -> None:
    """P5."""
    async with between(says(answer + b"smuggled")) as b:
        got = await b.client.ask(UPGRADE + b"data")
        assert (got.status, got.one("Location"), got.one("Connection")) == (502, None, b"close")
        assert await b.client.closed()
        assert (b.gate.statuses, len(b.gate.pool.connections)) == ([502], 0)


async def test_a_refused_upgrade_is_passed_on() -> None:
    """P5."""
    async with between(says(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")) as b:
        got = await b.client.ask(UPGRADE + get("/smuggled"))
        assert (got.status, got.body, got.one("Connection")) == (403, b"no", b"close")
        assert await b.client.closed()
        assert len(b.upstream.requests) == 1


async def test_a_101_that_nobody_asked_for_is_502() -> None:
    """P5."""
    async with between(says(SWITCH + b"smuggled")) as b:
        got = await b.client.ask(get("/a"))
        assert (got.status, b"smuggled" in got.body) == (502, False)
        assert not b.gate.pool.connections


async def test_an_upgrade_is_sent_on_a_connection_of_its_own_and_never_twice() -> None:
    async with between(dies()) as b:
        assert (await b.client.ask(get("/1"))).status == 200
        b.upstream.script = says(b"", then="close")
        assert (await b.client.ask(UPGRADE)).status == 503
        assert [request.target for request in b.upstream.requests] == [b"/1", b"/exec"]
        assert len(b.upstream.connections) == 2


@pytest.mark.parametrize("who", ["client", "upstream"])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_tunnel_ends_on_both_sides_when_one_ends(who: str, how: str) -> None:
    async with between(tunnel()) as b:
        assert (await b.client.ask(UPGRADE)).status == 101
        end: Client | Upstreamed = b.client if who == "client" else b.upstream.connections[0]
        if how == "reset":
            end.reset()
        else:
            end.writer.close()
        await until(lambda: b.gate.finished == [(101, "")])
        if who == "upstream":
            assert await b.client.closed()
        await until(lambda: not b.listener.connections and b.upstream.connections[0].reader.at_eof())


@pytest.mark.parametrize("who", ["client", "upstream"])
async def test_the_last_words_before_an_end_arrive(who: str) -> None:
    words = b"y" * 3_000_000

    async def script(connection: Upstreamed) -> None:
        await connection.head()
        connection.send(SWITCH)
        if who == "upstream":
            connection.send(words)
            connection.writer.close()
        else:
            connection.raw = bytearray(await connection.rest())

    async with between(script) as b:
        assert (await b.client.ask(UPGRADE)).status == 101
        if who == "upstream":
            assert await b.client.rest() == words
        else:
            b.client.send(words)
            b.client.writer.close()
            await until(b.upstream.connections[0].reader.at_eof)
            await turn(20)
            assert b.upstream.connections[0].raw == words
