"""One request after the other on a client's connection: whose turn it is, who waits for whom, and how it ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trustme
import uvloop

from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.request_head import ServerLimits
from tests.support.http1 import Client, chunked, connected, get, listening, turn, until
from tests.support.http1_server import HOST, POST, Held, at_once

TWO_HOSTS = b"GET / HTTP/1.1\r\n" + HOST + b"Host: other.test\r\n\r\n"
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]


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
        client.send(get("/1") + get("/2") + TWO_HOSTS + get("/4"))
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
