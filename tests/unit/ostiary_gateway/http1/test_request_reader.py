"""What cannot be read in one way only is refused, and the connection closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import uvloop

from ostiary_gateway.http1.request_head import ServerLimits
from tests.support.http1 import connected, get, listening, turn, until
from tests.support.http1_server import HOST, POST, Held

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]

REFUSED = {
    "length, then coding": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding, then length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "the same length twice": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "lengths in one line": POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "plus": POST + b"Content-Length: +5\r\n\r\nhello",
    "minus": POST + b"Content-Length: -5\r\n\r\nhello",
    "empty length": POST + b"Content-Length:\r\n\r\nhello",
    "length in hex": POST + b"Content-Length: 0x5\r\n\r\nhello",
    "length with a blank": POST + b"Content-Length: 1 0\r\n\r\nhello",
    "length beyond 64 bits": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "coding twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "two codings in two lines": POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding in two lines": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another coding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "coding with a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "empty coding": POST + b"Transfer-Encoding:\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + b"Host: other.test\r\n\r\n",
    "the same host twice": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "an empty host before another": b"GET / HTTP/1.1\r\nHost:\r\n" + HOST + b"\r\n",
    "no host": b"GET / HTTP/1.1\r\nAccept: a\r\n\r\n",
    "empty host": b"GET / HTTP/1.1\r\nHost: \r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "folded first header": b"GET / HTTP/1.1\r\n X: a\r\n" + HOST + b"\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: a\n\n",
    "one bare line feed": b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "bare line feed at the end": b"GET / HTTP/1.1\r\n" + HOST + b"\n",
    "bare carriage return": b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n",
    "NUL in a name": b"GET / HTTP/1.1\r\n" + HOST + b"X\x00: b\r\n\r\n",
    "control character": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x01b\r\n\r\n",
    "blank before the colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "blank before the length's colon": POST + b"Content-Length : 5\r\n\r\nhello",
    "no colon": b"GET / HTTP/1.1\r\n" + HOST + b"nonsense\r\n\r\n",
    "no name": b"GET / HTTP/1.1\r\n" + HOST + b": a\r\n\r\n",
    "no token": b"GET / HTTP/1.1\r\n" + HOST + b"X(a): b\r\n\r\n",
    "coding in HTTP/1.0": b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\n" + HOST + b"\r\n",
    "lower case method": b"get / HTTP/1.1\r\n" + HOST + b"\r\n",
    "unknown method": b"FROBNICATE / HTTP/1.1\r\n" + HOST + b"\r\n",
    "two targets": b"GET /a /b HTTP/1.1\r\n" + HOST + b"\r\n",
    "raw bytes in the target": b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tab in the target": b"GET /a\tb HTTP/1.1\r\n" + HOST + b"\r\n",
    "upgrade with a body": get("/", "Connection: upgrade", "Upgrade: websocket", body=b"rest"),
    "unknown upgrade with a body": get("/", "Connection: upgrade", "Upgrade: h2c", body=b"rest"),
    "upgrade with chunks": get("/", "Connection: upgrade", "Upgrade: websocket", "Transfer-Encoding: chunked"),
    "upgrade with a body in HTTP/1.0": (
        b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 4\r\n\r\nrest"
    ),
}
OTHERWISE_REFUSED = {
    "HTTP/0.9": (505, b"GET /\r\n\r\n"),
    "HTTP/0.9 by name": (505, b"GET / HTTP/0.9\r\n" + HOST + b"\r\n"),
    "HTTP/2.0": (505, b"GET / HTTP/2.0\r\n" + HOST + b"\r\n"),
    "CONNECT": (405, b"CONNECT a.test:443 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "TRACE": (405, b"TRACE / HTTP/1.1\r\n" + HOST + b"\r\n"),
    "unknown expectation": (417, get("/", "Expect: a-miracle")),
    "too many headers": (431, get("/", *(f"X-{n}: a" for n in range(100)))),
    "one huge header": (431, get("/", "X: " + "a" * 70_000)),
    "many large headers": (431, get("/", *(f"X-{n}: {'a' * 1000}" for n in range(90)))),
    "a huge target": (431, get("/" + "a" * 70_000)),
}


async def test_what_can_be_read_in_two_ways_is_refused_and_the_connection_closed(subtests: pytest.Subtests) -> None:
    """P6."""
    for case, request_bytes in REFUSED.items():
        with subtests.test(case):
            async with listening() as listener, connected(listener.port) as client:
                answer = await client.ask(request_bytes)
                assert (answer.status, answer.one("Connection")) == (400, b"close")
                assert await client.closed()
                assert listener.exchanges == []


async def test_what_is_not_served_is_refused_with_its_own_status(subtests: pytest.Subtests) -> None:
    """P6."""
    for case, (status, request_bytes) in OTHERWISE_REFUSED.items():
        with subtests.test(case):
            async with listening() as listener, connected(listener.port) as client:
                answer = await client.ask(request_bytes)
                assert (answer.status, answer.one("Connection")) == (status, b"close")
                assert await client.closed()
                assert listener.exchanges == []


CHUNKS_REFUSED = {
    "size too large for 64 bits": b"FFFFFFFFFFFFFFFFF\r\n",
    "size in 0x": b"0x3\r\nabc\r\n",
    "signed size": b"+3\r\nabc\r\n",
    "blank after the size": b"3 \r\nabc\r\n",
    "blank before the size": b" 3\r\nabc\r\n",
    "underscore in the size": b"1_0\r\n",
    "line feed after the size": b"3\nabc\r\n",
    "line feed in the extension": b"3;a\nabc\r\n",
    "carriage return in the extension": b"3;a\rb\r\nabc\r\n",
    "line end in a quoted extension": b'3;a="\r\n"\r\nabc\r\n',
    "chunk longer than its size": b"3\r\nabcd\r\n",
    "line feed after the chunk": b"3\r\nabc\n0\r\n",
    "no size": b"\r\n\r\n",
    "length among the trailers": b"0\r\nContent-Length: 3\r\n\r\n",
    "coding among the trailers": b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "folded trailer": b"0\r\nX: a\r\n b\r\n\r\n",
    "trailer without an end": b"0\r\nX: " + b"a" * 400_000,
    "too many trailers": b"0\r\n" + b"X: a\r\n" * 200 + b"\r\n",
}


async def test_a_body_that_cannot_be_read_ends_the_connection_and_whoever_took_it_is_told(
    subtests: pytest.Subtests,
) -> None:
    """P6."""
    for case, body in CHUNKS_REFUSED.items():
        with subtests.test(case):
            held = Held()
            async with listening(held) as listener, connected(listener.port) as client:
                client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
                await until(partial(bool, held.exchanges))
                held.exchanges[0].accept_body(held)
                answer = await client.ask(body)
                assert answer.status in (400, 431)
                assert held.told == ["lost"]
                assert await client.closed()


async def test_chunk_extensions_and_trailers_are_dropped() -> None:
    """P6."""
    async with listening() as listener, connected(listener.port) as client:
        body = b'3;name="value"\r\nabc\r\n0\r\nX-Remote-User: root\r\n\r\n'
        answer = await client.ask(POST + b"Transfer-Encoding: Chunked\r\n\r\n" + body)
        assert answer.body == b"POST /p abc"
        assert (await client.ask(get("/next"))).body == b"GET /next "


async def test_a_head_that_drips_in_is_refused_at_its_limit_and_not_kept() -> None:
    """P6."""
    async with listening(limits=ServerLimits(head_bytes=1000)) as listener, connected(listener.port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"X: ")
        await until(lambda: bool(listener.connections))
        while listener.connections and not listener.connection.failed:
            client.send(b"a" * 100)
            await turn(3)
        assert (await client.answer()).status == 431


async def test_a_head_in_two_pieces_is_measured_whole() -> None:
    async with listening(limits=ServerLimits(head_bytes=1000)) as listener, connected(listener.port) as client:
        client.send(b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 700)
        await until(lambda: bool(listener.connections))
        await turn(20)
        client.send(b"a" * 700 + b"\r\n\r\n")
        assert (await client.answer()).status == 431


async def test_a_large_body_before_it_does_not_count_as_the_next_head() -> None:
    async with listening() as listener, connected(listener.port) as client:
        body = b"x" * 100_000
        client.send(get("/1", method="POST", body=body) + b"GET /2 HTTP/1.1\r\n" + HOST + b"X: a")
        assert len((await client.answer()).body) == len(body) + len("POST /1 ")
        client.send(b"b\r\n\r\n")
        assert (await client.answer()).body == b"GET /2 "


async def test_empty_lines_before_a_request_are_ignored_but_do_not_prolong_the_wait() -> None:
    async with listening() as listener, connected(listener.port) as client:
        client.send(b"\r\n\r\n")
        await until(lambda: bool(listener.connections))
        deadline = listener.connection.deadline
        client.send(b"\r\n")
        await turn(20)
        assert listener.connection.deadline == deadline
        assert (await client.ask(get("/a"))).body == b"GET /a "
