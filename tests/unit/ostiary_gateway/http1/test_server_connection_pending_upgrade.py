"""Requests to switch protocols: which offers are taken, and what becomes of what follows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.support.http1 import connected, get, listening, until
from tests.support.http1_server import Held, at_once

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]


async def test_an_offer_of_another_protocol_is_ignored_and_http_goes_on(subtests: pytest.Subtests) -> None:
    """P5."""
    for offer in ["h2c", "TLS/1.0", "foo, bar"]:
        for synchronous in [False, True]:
            with subtests.test(offer=offer, synchronous=synchronous):
                async with listening(at_once if synchronous else None) as listener, connected(listener.port) as client:
                    request = get(
                        "/1", "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {offer}", "HTTP2-Settings: AAA"
                    )
                    client.send(request + get("/2") + request)
                    expected = 401 if synchronous else 200
                    assert [(await client.answer()).status for _ in range(3)] == [expected] * 3
                    assert (await client.ask(get("/3"))).status == expected
                    assert [exchange.request.upgrade for exchange in listener.exchanges] == [b""] * 4


async def test_many_ignored_offers_in_one_read_are_no_deep_recursion() -> None:
    async with listening(at_once) as listener, connected(listener.port) as client:
        client.send(get("/", "Connection: upgrade", "Upgrade: h2c") * 2000)
        for _ in range(2000):
            assert (await client.answer()).status == 401


async def test_an_upgrade_that_connection_does_not_name_is_none() -> None:
    """P5."""
    async with listening() as listener, connected(listener.port) as client:
        client.send(get("/1", "Upgrade: websocket") + get("/2"))
        assert [(await client.answer()).body for _ in range(2)] == [b"GET /1 ", b"GET /2 "]
        assert listener.exchanges[0].request.upgrade == b""


async def test_http10_cannot_upgrade() -> None:
    async with listening() as listener, connected(listener.port) as client:
        answer = await client.ask(b"GET /1 HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert answer.body == b"GET /1 "
        assert listener.exchanges[0].request.upgrade == b""


@pytest.mark.parametrize(
    ("lines", "chosen"),
    [
        (("Upgrade: websocket",), b"websocket"),
        (("Upgrade: SPDY/3.1",), b"spdy/3.1"),
        (("Upgrade: h2c, WebSocket",), b"websocket"),
        (("Upgrade: h2c", "Upgrade: spdy/3.1, websocket"), b"spdy/3.1"),
    ],
)
async def test_the_first_offer_that_can_be_switched_to_is_taken(lines: tuple[str, ...], chosen: bytes) -> None:
    """P5."""
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get("/1", "Connection: Upgrade", *lines) + b"ahead of the answer")
        await until(lambda: bool(held.exchanges) and held.exchanges[0].body_complete)
        assert held.exchanges[0].request.upgrade == chosen
        held.exchanges[0].accept_body(held)
        assert (held.parts, held.told) == ([b"ahead of the answer"], ["end"])


async def test_a_refused_upgrade_ends_the_connection_because_what_follows_may_be_anything() -> None:
    """P5."""
    async with listening(at_once) as listener, connected(listener.port) as client:
        client.send(get("/1", "Connection: upgrade", "Upgrade: websocket") + get("/2"))
        answer = await client.answer()
        assert (answer.status, answer.one("Connection")) == (401, b"close")
        assert await client.closed()
        assert len(listener.exchanges) == 1


async def test_an_upgrade_behind_another_request_is_refused() -> None:
    async with listening() as listener, connected(listener.port) as client:
        client.send(get("/1") + get("/2", "Connection: upgrade", "Upgrade: websocket"))
        answer = await client.answer()
        assert (answer.body, answer.one("Connection")) == (b"GET /1 ", b"close")
        assert await client.closed()
        assert len(listener.exchanges) == 1
