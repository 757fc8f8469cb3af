"""The client's side of a connection: what is refused, what is understood, and who waits for whom."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trustme
import uvloop

from ostiary.gateway.http1.exchange import Exchange
from ostiary.gateway.http1.request_head import ServerLimits
from ostiary.gateway.http1.server.discarded_body import DISCARD_LIMIT
from tests.support.http1 import Client, chunked, connected, get, listening, turn, until

HOST = b"Host: gateway.test\r\n"
POST = b"POST /p HTTP/1.1\r\n" + HOST
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]


class Held:
    """A handler that keeps the exchanges, for the test to answer; a responder that keeps what it is told."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.parts: list[bytes] = []
        self.told: list[str] = []

    def __call__(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        exchange.responder = self

    def body(self, data: bytes) -> None:
        self.parts.append(data)

    def body_end(self) -> None:
        self.told.append("end")

    def client_lost(self) -> None:
        self.told.append("lost")

    def client_full(self) -> None:
        self.told.append("full")

    def client_ready(self) -> None:
        self.told.append("ready")


def at_once(exchange: Exchange) -> None:
    """Answers without looking at the body, as a refusal does."""
    exchange.respond(401, [], b"who?")


# --- what is refused ---

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


@pytest.mark.parametrize("request_bytes", REFUSED.values(), ids=REFUSED.keys())
async def test_what_can_be_read_in_two_ways_is_refused_and_the_connection_closed(request_bytes: bytes) -> None:
    """P6."""
    async with listening() as listener, connected(listener.port) as client:
        answer = await client.ask(request_bytes)
        assert (answer.status, answer.one("Connection")) == (400, b"close")
        assert await client.closed()
        assert listener.exchanges == []


@pytest.mark.parametrize(("status", "request_bytes"), OTHERWISE_REFUSED.values(), ids=OTHERWISE_REFUSED.keys())
async def test_what_is_not_served_is_refused_with_its_own_status(status: int, request_bytes: bytes) -> None:
    """P6."""
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


@pytest.mark.parametrize("body", CHUNKS_REFUSED.values(), ids=CHUNKS_REFUSED.keys())
async def test_a_body_that_cannot_be_read_ends_the_connection_and_whoever_took_it_is_told(body: bytes) -> None:
    """P6."""
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        await until(lambda: bool(held.exchanges))
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


# --- what is understood ---


@LOOPS
def test_a_connection_serves_one_request_after_the_other(run: Run) -> None:
    async def main() -> None:
        async with listening() as listener, connected(listener.port) as client:
            for n in range(3):
                answer = await client.ask(get(f"/{n}", method="POST", body=b"body"))
                assert (answer.body, answer.one("Connection")) == (b"POST /%d body" % n, None)
            assert len(listener.connections) == 1

    run(main())


@LOOPS
def test_tls_tells_the_certificate_and_the_scheme(run: Run, ca: trustme.CA) -> None:
    server, trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.issue_cert("localhost").configure_cert(server)
    ca.configure_trust(server)
    server.verify_mode = ssl.CERT_OPTIONAL
    ca.configure_trust(trust)
    ca.issue_cert("alice@example.test").configure_cert(trust)

    async def main() -> None:
        async with listening(tls=server) as listener, connected(listener.port, trust) as client:
            assert (await client.ask(get("/a"))).body == b"GET /a "
            connection = listener.connection
            assert connection.forwarded_lines == b"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: https\r\n"
            assert connection.peer_certificate is not None

    run(main())


async def test_pipelined_requests_are_answered_in_order_with_their_bodies() -> None:
    """P6."""
    async with listening() as listener, connected(listener.port) as client:
        chunks = POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"two ", b"parts")
        client.send(get("/1", method="PUT", body=b"one") + get("/2") + chunks + get("/4", method="POST", body=b"4"))
        bodies = [(await client.answer()).body for _ in range(4)]
        assert bodies == [b"PUT /1 one", b"GET /2 ", b"POST /p two parts", b"POST /4 4"]


async def test_the_next_request_begins_only_when_the_one_before_is_answered() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get("/1") + get("/2"))
        await until(lambda: bool(held.exchanges))
        await turn(20)
        assert [exchange.request.target for exchange in held.exchanges] == [b"/1"]
        held.exchanges[0].respond(200, [], b"1")
        await until(lambda: len(held.exchanges) == 2)
        held.exchanges[1].respond(200, [], b"2")
        assert [(await client.answer()).body for _ in range(2)] == [b"1", b"2"]


async def test_beyond_the_limit_of_pipelined_requests_the_earlier_ones_are_answered_and_the_connection_ends() -> None:
    async with listening(limits=ServerLimits(pipelined=3)) as listener, connected(listener.port) as client:
        client.send(b"".join(get(f"/{n}") for n in range(8)))
        answers = [await client.answer() for _ in range(4)]
        assert [answer.body for answer in answers] == [b"GET /%d " % n for n in range(4)]
        assert answers[-1].one("Connection") == b"close"
        assert await client.closed()


async def test_a_bad_request_behind_good_ones_ends_the_connection_after_their_answers() -> None:
    """P6."""
    async with listening() as listener, connected(listener.port) as client:
        client.send(get("/1") + get("/2") + REFUSED["two hosts"] + get("/4"))
        assert [(await client.answer()).body for _ in range(2)] == [b"GET /1 ", b"GET /2 "]
        assert await client.closed()
        assert len(listener.exchanges) == 2


async def test_what_follows_a_close_is_not_looked_at() -> None:
    """P6."""
    async with listening() as listener, connected(listener.port) as client:
        client.send(get("/1", "Connection: close") + get("/2"))
        answer = await client.answer()
        assert (answer.body, answer.one("Connection")) == (b"GET /1 ", b"close")
        assert await client.closed()
        assert [exchange.request.target for exchange in listener.exchanges] == [b"/1"]


async def test_what_follows_a_close_that_is_answered_at_once_is_not_answered() -> None:
    """P6."""
    async with listening(at_once) as listener, connected(listener.port) as client:
        client.send(get("/1", "Connection: close") + get("/2") + b"garbage")
        assert (await client.answer()).status == 401
        assert await client.closed()
        assert len(listener.exchanges) == 1


async def test_head_has_the_length_and_no_body() -> None:
    async with listening() as listener, connected(listener.port) as client:
        answer = await client.ask(get("/a", method="HEAD"), "HEAD")
        assert (answer.one("Content-Length"), answer.body) == (b"8", b"")
        assert (await client.ask(get("/b"))).body == b"GET /b "


async def test_http10_needs_no_host_and_closes_unless_asked_to_keep() -> None:
    async with listening() as listener, connected(listener.port) as client:
        kept = await client.ask(b"GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (kept.body, kept.one("Connection")) == (b"GET /1 ", b"keep-alive")
        closed = await client.ask(b"GET /2 HTTP/1.0\r\n\r\n")
        assert (closed.body, closed.one("Connection")) == (b"GET /2 ", b"close")
        assert await client.closed()


# --- Expect ---


async def test_a_body_that_is_wanted_is_asked_for() -> None:
    async with listening() as listener, connected(listener.port) as client:
        client.send(get("/a", "Expect: 100-Continue", "Content-Length: 4", method="POST"))
        assert (await client.head()).status == 100
        assert (await client.ask(b"body")).body == b"POST /a body"
        assert (await client.ask(get("/b"))).status == 200


async def test_a_body_that_is_not_wanted_is_not_asked_for_and_the_connection_closes() -> None:
    """S56."""
    async with listening(at_once) as listener, connected(listener.port) as client:
        answer = await client.ask(get("/a", "Expect: 100-continue", "Content-Length: 4", method="POST"))
        assert (answer.status, answer.interim, answer.one("Connection")) == (401, [], b"close")
        assert await client.closed()


async def test_http10_is_never_told_to_continue() -> None:
    async with listening() as listener, connected(listener.port) as client:
        answer = await client.ask(b"POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody")
        assert (answer.interim, answer.body) == ([], b"POST /a body")


# --- bodies that nobody wants ---


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


# --- upgrades ---


@pytest.mark.parametrize("offer", ["h2c", "TLS/1.0", "foo, bar"])
@pytest.mark.parametrize("synchronous", [False, True])
async def test_an_offer_of_another_protocol_is_ignored_and_http_goes_on(offer: str, synchronous: bool) -> None:
    """P5."""
    async with listening(at_once if synchronous else None) as listener, connected(listener.port) as client:
        request = get("/1", "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {offer}", "HTTP2-Settings: AAA")
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


# --- who waits for whom ---


async def test_reading_pauses_while_nobody_takes_the_body() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        size = 64 * 1024 * 1024
        client.send(get("/a", f"Content-Length: {size}", method="POST"))
        await until(lambda: bool(held.exchanges))
        upload = asyncio.create_task(_upload(client, size))
        exchange = held.exchanges[0]
        await until(lambda: not listener.connection.transport.is_reading())
        assert exchange.received < 1024 * 1024
        assert not upload.done()
        exchange.accept_body(held)
        await upload
        await until(lambda: held.told[-1:] == ["end"])
        assert sum(map(len, held.parts)) == size


async def _upload(client: Client, size: int) -> None:
    part = b"x" * (256 * 1024)
    for _ in range(size // len(part)):
        client.send(part)
        await client.writer.drain()


async def test_a_responder_that_is_full_at_once_stays_paused() -> None:
    class Full(Held):
        def body(self, data: bytes) -> None:
            super().body(data)
            self.exchanges[0].pause_body()

    full = Full()
    async with listening(full) as listener, connected(listener.port) as client:
        client.send(get("/a", "Content-Length: 1000000", method="POST") + b"x" * 400_000)
        await until(lambda: bool(full.exchanges) and not listener.connection.transport.is_reading())
        full.exchanges[0].accept_body(full)
        assert full.parts
        assert not listener.connection.transport.is_reading()


async def test_a_client_that_reads_no_answers_gets_no_further_ones() -> None:
    large = b"x" * 200_000

    def handle(exchange: Exchange) -> None:
        exchange.respond(200, [], large)

    async with listening(handle) as listener, connected(listener.port) as client:
        # Nobody reads here: the stream's own buffer pauses the socket.
        client.send(get("/a") * 16)
        await until(lambda: bool(listener.connections))
        for _ in range(300):
            client.send(get("/a") * 16)
            await turn(2)
        before = len(listener.exchanges)
        await turn(50)
        assert listener.connection.transport.get_write_buffer_size() < 1024 * 1024
        assert len(listener.exchanges) - before < 16
        assert len(listener.exchanges) < 300
        for _ in range(before):
            assert len((await client.answer()).body) == len(large)


# --- time ---


@pytest.mark.parametrize("begun", [b"G", b"GET / HTTP/1.1\r\n" + HOST])
async def test_a_head_that_takes_too_long_is_answered_408(begun: bytes) -> None:
    async with listening() as listener, connected(listener.port) as client:
        client.send(begun)
        await until(lambda: bool(listener.connections) and listener.connection._reader.exchange is not None)
        listener.later(9)
        assert listener.connections
        listener.later(11)
        assert (await client.answer()).status == 408
        assert await client.closed()


async def test_a_connection_that_is_idle_for_too_long_is_closed_without_a_word() -> None:
    async with listening() as listener, connected(listener.port) as client:
        await client.ask(get("/a"))
        listener.later(119)
        assert (await client.ask(get("/b"))).status == 200
        listener.later(121)
        assert await client.rest() == b""


async def test_a_connection_that_never_says_anything_is_closed() -> None:
    async with listening() as listener, connected(listener.port) as client:
        await until(lambda: bool(listener.connections))
        listener.later(11)
        assert await client.rest() == b""


async def test_a_body_that_takes_too_long_is_answered_408_and_its_taker_told() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get("/a", "Content-Length: 10", method="POST") + b"12345")
        await until(lambda: bool(held.exchanges))
        held.exchanges[0].accept_body(held)
        # The head's time is over when the head is there.
        listener.later(11)
        assert held.told == []
        listener.later(61)
        assert (await client.answer()).status == 408
        assert held.told == ["lost"]


async def test_while_we_do_not_read_the_client_is_not_late() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get("/a", "Content-Length: 10", method="POST") + b"12345")
        await until(lambda: bool(held.exchanges))
        exchange = held.exchanges[0]
        exchange.accept_body(held)
        await until(lambda: bool(held.parts))
        exchange.pause_body()
        listener.later(1000)
        assert held.told == []
        exchange.resume_body()
        listener.later(61)
        assert held.told == ["lost"]
        assert (await client.answer()).status == 408


async def test_while_an_answer_is_worked_on_there_is_no_time_limit_here() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get("/a") + get("/b", "Content-Length: 10", method="POST") + b"12345")
        await until(lambda: bool(held.exchanges))
        listener.later(100_000)
        held.exchanges[0].respond(200, [], b"late")
        assert (await client.answer()).body == b"late"


async def test_an_answer_that_is_closed_upon_is_not_kept_for_a_client_that_never_reads() -> None:
    large = b"x" * 8_000_000

    def handle(exchange: Exchange) -> None:
        exchange.close_after = True
        exchange.respond(200, [], large)

    async with listening(handle) as listener, connected(listener.port) as client:
        client.send(get("/a"))
        await until(lambda: bool(listener.exchanges))
        listener.later(5)
        assert listener.connections
        listener.later(1000)
        await until(lambda: not listener.connections)
        with pytest.raises((ConnectionError, EOFError)):
            await client.answer()


# --- ends ---


async def test_a_client_that_hangs_up_is_told_to_the_responder_once() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get("/a") + get("/b"))
        await until(lambda: bool(held.exchanges))
        client.reset()
        await until(lambda: not listener.connections)
        assert held.told == ["lost"]
        assert held.exchanges[0].gone
        held.exchanges[0].respond(200, [], b"to nobody")
        assert len(held.exchanges) == 1


@LOOPS
def test_an_answer_that_is_cut_looks_cut_even_where_closing_ends_it(run: Run) -> None:
    def handle(exchange: Exchange) -> None:
        exchange.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        asyncio.get_running_loop().call_later(0.01, exchange.abort)

    async def main() -> None:
        async with listening(handle) as listener, connected(listener.port) as client:
            client.send(b"GET / HTTP/1.0\r\n\r\n")
            with pytest.raises(ConnectionResetError):
                await client.rest()

    run(main())


async def test_a_handler_that_fails_is_an_internal_error_and_the_next_connection_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handle(exchange: Exchange) -> None:
        raise RuntimeError("secret-detail")

    async with listening(handle) as listener:
        for _ in range(2):
            async with connected(listener.port) as client:
                answer = await client.ask(get("/a") + get("/b"))
                assert (answer.status, answer.one("Connection")) == (500, b"close")
                assert b"secret" not in answer.body
                assert await client.closed()
    assert "a request failed inside the gateway" in caplog.text


async def test_draining_finishes_what_was_begun_and_begins_nothing_more() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as idle, connected(listener.port) as busy:
        busy.send(get("/1"))
        await until(lambda: bool(held.exchanges) and len(listener.connections) == 2)
        for connection in list(listener.connections):
            connection.drain()
        assert await idle.rest() == b""
        busy.send(get("/2"))
        await turn(20)
        held.exchanges[0].respond(200, [], b"1")
        answer = await busy.answer()
        assert (answer.body, answer.one("Connection")) == (b"1", b"close")
        assert await busy.closed()
        assert len(held.exchanges) == 1


async def test_requests_that_came_with_the_last_one_before_a_drain_are_not_begun() -> None:
    def handle(exchange: Exchange) -> None:
        exchange.connection.draining = True
        exchange.respond(200, [], b"last")

    async with listening(handle) as listener, connected(listener.port) as client:
        client.send(get("/1", method="DELETE") + get("/2", method="DELETE"))
        assert (await client.answer()).body == b"last"
        assert await client.closed()
        assert len(listener.exchanges) == 1
