"""One request to an upstream and its answer back: bytes both ways, at the pace of the slower, and one end to it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import trustme
import uvloop

from ostiary_gateway.http1.client_connection import UpstreamAddress
from ostiary_gateway.http1.client_pool import Pool
from tests.support.http1 import (
    Script,
    Upstreamed,
    chunked,
    connected,
    get,
    listening,
    turn,
    until,
    upstream,
)
from tests.support.proxied import HI, OK, UPGRADE, Between, Gate, between, dies, says, tunnel

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]


# --- there and back ---


@LOOPS
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_requests_and_answers_pass_on_connections_that_are_kept(run: Run, tls: bool, ca: trustme.CA) -> None:
    server, trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.issue_cert("localhost").configure_cert(server)
    ca.configure_trust(trust)

    async def main() -> None:
        async with upstream(tls=server if tls else None) as made:
            address = UpstreamAddress("127.0.0.1", made.port, trust if tls else None, "localhost")
            gate = Gate(Pool(address, asyncio.get_running_loop()))
            async with (
                listening(gate, tls=server if tls else None) as listener,
                connected(listener.port, trust if tls else None) as client,
            ):
                for size in (0, 10, 300_000):
                    body = b"x" * size
                    answer = await client.ask(get("/a?b=c", method="POST", body=body))
                    assert (answer.status, answer.body, answer.one("Audit-Id")) == (200, body, b"1")
                client.send(get("/c", "Transfer-Encoding: chunked", method="PUT") + chunked(b"two ", b"parts"))
                assert (await client.answer()).body == b"two parts"
                assert [request.target for request in made.requests] == [b"/a?b=c"] * 3 + [b"/c"]
                assert (len(made.connections), gate.statuses) == (1, [200] * 4)
            gate.pool.close()

    run(main())


async def test_trailers_of_a_request_are_dropped_and_those_of_an_answer_pass() -> None:
    answer = OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"hi", trailers=b"X-Sum: 1\r\nConnection: x\r\n")
    async with between(says(answer)) as b:
        request = get("/c", "Transfer-Encoding: chunked", method="PUT")
        b.client.send(request + chunked(b"body", trailers=b"Impersonate-User: root\r\n"))
        got = await b.client.answer()
        assert (got.body, got.trailers) == (b"hi", [(b"X-Sum", b"1")])
        (seen,) = b.upstream.requests
        assert (seen.body, seen.trailers) == (b"body", [])


async def test_answers_of_every_kind_pass_and_the_connections_go_on(subtests: pytest.Subtests) -> None:
    cases = [
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"h", b"i"), b"hi"),
        (HI, b"hi"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nETag: a\r\n\r\n", b""),
        (b"HTTP/1.1 404 Gone Fishing\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 799 Own\r\nContent-Length: 0\r\n\r\n", b""),
    ]
    for answer, body in cases:
        with subtests.test(answer=answer, body=body):
            async with between(says(answer)) as b:
                for _ in range(2):
                    got = await b.client.ask(get("/a"))
                    assert (got.status, got.body) == (int(answer.split()[1]), body)
                assert len(b.upstream.connections) == 1


async def test_an_answer_that_ends_with_its_connection_reaches_the_client_in_chunks() -> None:
    async with between(says(OK + b"\r\nall of it", then="close")) as b:
        for _ in range(2):
            got = await b.client.ask(get("/a"))
            assert (got.body, got.one("Transfer-Encoding")) == (b"all of it", b"chunked")


@pytest.mark.parametrize("answer", [OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"h", b"i"), HI])
async def test_an_http10_client_gets_no_chunks(answer: bytes) -> None:
    async with between(says(answer)) as b:
        got = await b.client.ask(b"GET /a HTTP/1.0\r\n\r\n")
        assert (got.body, got.one("Transfer-Encoding"), got.one("Connection")) == (b"hi", None, b"close")
        assert await b.client.closed()


async def test_half_of_such_an_answer_does_not_look_whole() -> None:
    answer = OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"
    async with between(says(answer, then="reset")) as b:
        b.client.send(b"GET /a HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await b.client.rest()


async def test_head_passes_with_its_length_and_without_a_body() -> None:
    async with between(says(OK + b"Content-Length: 99\r\n\r\n")) as b:
        for _ in range(2):
            got = await b.client.ask(get("/a", method="HEAD"), "HEAD")
            assert got.one("Content-Length") == b"99"
        # Not used again: nobody knows whether the upstream sends those bytes after all.
        assert len(b.upstream.connections) == 2


EVIL = OK + b"X-Of: another\r\nContent-Length: 4\r\n\r\nEVIL"
NO_CONTENT, NOT_MODIFIED = b"HTTP/1.1 204 No Content\r\n", b"HTTP/1.1 304 Not Modified\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\n"
LENGTH, CHUNKS = b"Content-Length: %d\r\n" % len(EVIL), b"Transfer-Encoding: chunked\r\n"
UNCLEAR = [
    ("GET", NO_CONTENT + LENGTH + b"\r\n"),
    ("GET", NO_CONTENT + CHUNKS + b"\r\n"),
    ("GET", NO_CONTENT + b"Content-Length: 1\r\n\r\n"),
    ("POST", NO_CONTENT + LENGTH + b"\r\n"),
    ("DELETE", NO_CONTENT + LENGTH + b"\r\n"),
    ("GET", NOT_MODIFIED + LENGTH + b"\r\n"),
    ("GET", NOT_MODIFIED + CHUNKS + b"\r\n"),
    ("HEAD", OK + LENGTH + b"\r\n"),
    ("HEAD", OK + CHUNKS + b"\r\n"),
    ("HEAD", b"HTTP/1.1 404 Not Found\r\n" + LENGTH + b"\r\n"),
    ("HEAD", NO_CONTENT + LENGTH + b"\r\n"),
    ("GET", EARLY + LENGTH + b"\r\n" + HI),
    ("GET", EARLY + CHUNKS + b"\r\n" + HI),
    ("GET", b"HTTP/1.1 100 Continue\r\n" + LENGTH + b"\r\n" + HI),
    ("GET", EARLY + LENGTH + b"\r\n" + OK + CHUNKS + b"\r\n" + chunked(b"hi")),
    ("GET", EARLY + LENGTH + b"\r\n" + NO_CONTENT + b"\r\n"),
    ("GET", HI + b"\r\n"),
    ("GET", HI + b"H"),
    ("GET", HI + EVIL),
    ("GET", NO_CONTENT + b"\r\n" + EVIL),
    ("GET", OK + CHUNKS + b"\r\n" + chunked(b"hi") + b"0\r\n\r\n"),
    ("GET", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + CHUNKS + b"\r\n" + chunked(b"hi")),
    ("GET", OK + b"Content-Length: 2\r\n" + CHUNKS + b"\r\n" + chunked(b"hi")),
    ("GET", OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi"),
]


async def test_late_bytes_of_an_unclear_answer_never_answer_another_request(subtests: pytest.Subtests) -> None:
    """Whoever is next gets an answer from another connection."""

    async def script(parts: list[bytes], connection: Upstreamed) -> None:
        request = await connection.request()
        connection.upstream.requests.append(request)
        if connection.number > 0:
            connection.send(OK + b"Content-Length: 5\r\n\r\nright")
            await connection.request()
        for part in parts:
            connection.send(part)
            if len(parts) > 1:
                await connection.writer.drain()
                await turn(1)
        # Late: the next request may be on its way already.
        with contextlib.suppress(ConnectionError):
            await connection.request()
        connection.send(EVIL)

    for method, answer in UNCLEAR:
        for split in [False, True]:
            with subtests.test("byte by byte" if split else "in one piece", method=method, answer=answer):
                parts = [answer[n : n + 1] for n in range(len(answer))] if split else [answer]
                async with between(partial(script, parts)) as b:
                    await b.client.ask(get("/first", method=method), method)
                    async with connected(b.listener.port) as another:
                        got = await another.ask(get("/second"))
                    assert (got.status, got.body, got.one("X-Of")) == (200, b"right", None)
                    assert len(b.upstream.connections) == 2


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("GET", NO_CONTENT + b"Content-Length: 0\r\n\r\n"),
        ("GET", NOT_MODIFIED + b"\r\n"),
        ("HEAD", OK + b"Content-Length: 0\r\n\r\n"),
        ("HEAD", OK + b"\r\n"),
        ("GET", EARLY + b"\r\n" + HI),
    ],
)
async def test_a_connection_goes_on_after_an_answer_that_is_clear(method: str, answer: bytes) -> None:
    async with between(says(answer)) as b:
        for _ in range(3):
            await b.client.ask(get("/a", method=method), method)
        assert len(b.upstream.connections) == 1


async def test_early_hints_pass_and_a_100_does_not() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 4\r\n\r\n"
    async with between(says(early + HI)) as b:
        got = await b.client.ask(get("/a"))
        assert (got.body, [each.headers for each in got.interim]) == (b"hi", [[(b"Link", b"</a>")]])
        old = await b.client.ask(b"GET /a HTTP/1.0\r\n\r\n")
        assert (old.body, old.interim) == (b"hi", [])


async def test_an_upstream_lost_after_early_hints_is_a_502() -> None:
    async with between(says(b"HTTP/1.1 103 Early Hints\r\n\r\n", then="reset")) as b:
        got = await b.client.ask(get("/a"))
        assert (got.status, len(got.interim)) == (502, 1)


async def test_a_redirect_of_who_may_send_none_is_a_502_and_the_gateway_goes_on(subtests: pytest.Subtests) -> None:
    for case, whole in [("whole", True), ("in pieces", False)]:
        for status in [301, 302, 303, 307, 308, 300]:
            with subtests.test(case, status=status):
                head = b"HTTP/1.1 %d Elsewhere\r\nLocation: https://elsewhere.example.com/\r\n" % status
                body = (
                    b"Content-Length: 2\r\n\r\nhi"
                    if whole
                    else b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
                )
                async with between(says(head + body, HI)) as b:
                    b.gate.refuses_redirects = True
                    got = await b.client.ask(get("/a"))
                    assert (got.status, got.all("Location")) == (502, [])
                    assert (await b.client.ask(get("/a"))).body == b"hi"


async def test_that_nothing_has_changed_is_no_redirect() -> None:
    async with between(says(b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n")) as b:
        b.gate.refuses_redirects = True
        assert (await b.client.ask(get("/a"))).status == 304


async def test_what_only_we_may_say_is_not_taken_from_an_answer() -> None:
    own = b"Audit-Id: theirs\r\nConnection: x-own\r\nKeep-Alive: 1\r\nSet-Cookie: __Host-ostiary=stolen\r\n"
    async with between(says(OK + own + b"Set-Cookie: a=b\r\nContent-Length: 2\r\n\r\nhi")) as b:
        got = await b.client.ask(get("/a"))
        assert (got.all("Audit-Id"), got.all("Keep-Alive"), got.all("Set-Cookie")) == ([b"1"], [], [b"a=b"])


async def test_the_words_of_an_upstreams_status_line_are_not_passed_on() -> None:
    async with between(says(b"HTTP/1.1 200 O\x00\x1b[2J\r\nContent-Length: 0\r\n\r\n")) as b:
        assert (await b.client.ask(get("/a"))).start == b"HTTP/1.1 200 OK"


# --- an answer before the whole request ---


async def test_an_early_answer_arrives_and_neither_side_mistakes_the_rest_of_the_body() -> None:
    """P6. The upstream's connection is dropped, the client's goes on."""

    async def script(connection: Upstreamed) -> None:
        while True:
            head = await connection.head()
            connection.upstream.requests.append(head)
            connection.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")

    async with between(script) as b:
        smuggled = get("/smuggled")
        b.client.send(get("/a", f"Content-Length: {len(smuggled)}", method="POST"))
        assert (await b.client.answer()).status == 403
        b.client.send(smuggled)
        assert (await b.client.ask(get("/b"))).status == 403
        assert [request.target for request in b.upstream.requests] == [b"/a", b"/b"]
        assert len(b.upstream.connections) == 2


# --- what goes wrong ---


async def test_a_refused_connection_is_503() -> None:
    async with between() as b:
        b.gate.pool = Pool(UpstreamAddress("127.0.0.1", 1), asyncio.get_running_loop())
        assert (await b.client.ask(get("/a"))).status == 503
        assert b.gate.statuses == [503]


async def test_no_answer_in_time_is_504_and_the_time_begins_when_the_request_was_sent() -> None:
    async with between(says(b"")) as b:
        b.client.send(get("/a", "Content-Length: 10", method="POST"))
        await until(lambda: bool(b.gate.pool.connections))
        (connection,) = b.gate.pool.connections
        begun = connection.deadline
        b.client.send(b"1234567890")
        await until(lambda: bool(b.upstream.requests))
        assert connection.deadline > begun
        b.gate.later(59)
        assert b.gate.finished == []
        b.gate.later(61)
        assert (await b.client.answer()).status == 504
        assert b.gate.statuses == [504]


async def test_an_answer_that_stops_in_the_middle_is_cut_in_time() -> None:
    async with between(says(OK + b"Content-Length: 9\r\n\r\nhalf")) as b:
        b.client.send(get("/a"))
        assert (await b.client.head()).status == 200
        b.gate.later(61)
        with pytest.raises((EOFError, ConnectionResetError)):
            await b.client.exactly(9)
        assert b.gate.statuses == [200]
        assert "in time" in b.gate.finished[0][1]


async def test_a_stream_has_no_such_limit() -> None:
    async with between(says(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"), timeout=float("inf")) as b:
        b.client.send(get("/a"))
        assert (await b.client.head()).status == 200
        b.gate.later(1e9)
        b.listener.later(1e9)
        assert b.gate.finished == []
        b.upstream.connections[0].send(b"0\r\n\r\n")
        assert await b.client.exactly(11) == b"1\r\na\r\n0\r\n\r\n"


async def test_a_client_that_does_not_read_an_ordinary_answer_is_cut_in_time() -> None:
    async with between(says(OK + b"Content-Length: 20000000\r\n\r\n" + b"x" * 20_000_000)) as b:
        b.client.send(get("/a"))
        await until(lambda: bool(b.listener.connections) and b.listener.connection.write_paused)
        b.listener.later(59)
        assert b.gate.finished == []
        b.listener.later(61)
        await until(lambda: bool(b.gate.finished))
        await until(lambda: not b.gate.pool.connections)


# --- once more ---


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_a_safe_request_on_a_connection_that_turned_out_dead_is_sent_once_more(method: str) -> None:
    async with between(dies()) as b:
        assert (await b.client.ask(get("/1"))).status == 200
        assert (await b.client.ask(get("/2", method=method), method)).status == 200
        assert [request.target for request in b.upstream.requests] == [b"/1", b"/2", b"/2"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_request_that_changes_something_is_never_sent_twice(method: str) -> None:
    async with between(dies()) as b:
        assert (await b.client.ask(get("/1"))).status == 200
        assert (await b.client.ask(get("/2", method=method))).status in (502, 503)
        assert [request.target for request in b.upstream.requests] == [b"/1", b"/2"]


async def test_a_get_with_a_body_is_not_sent_twice() -> None:
    async with between(dies()) as b:
        assert (await b.client.ask(get("/1"))).status == 200
        assert (await b.client.ask(get("/2", body=b"query"))).status == 502
        assert len(b.upstream.requests) == 2


async def test_once_more_is_once() -> None:
    async def script(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.request())
        if len(connection.upstream.requests) == 1:
            connection.send(HI)
            connection.upstream.requests.append(await connection.request())

    async with between(script) as b:
        assert (await b.client.ask(get("/1"))).status == 200
        assert (await b.client.ask(get("/2"))).status == 503
        assert [request.target for request in b.upstream.requests] == [b"/1", b"/2", b"/2"]


async def test_on_a_new_connection_nothing_is_sent_twice() -> None:
    async with between(says(b"", then="close")) as b:
        assert (await b.client.ask(get("/1"))).status == 503
        assert len(b.upstream.requests) == 1


async def test_after_a_byte_of_an_answer_nothing_is_sent_twice() -> None:
    async def script(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.request())
        connection.send(HI)
        connection.upstream.requests.append(await connection.request())
        connection.send(b"H")

    async with between(script) as b:
        assert (await b.client.ask(get("/1"))).status == 200
        assert (await b.client.ask(get("/2"))).status == 502
        assert len(b.upstream.requests) == 2


# --- slow sides ---


@LOOPS
def test_an_answer_waits_for_a_client_that_reads_slowly(run: Run) -> None:
    size = 64 * 1024 * 1024
    sent = 0

    async def script(connection: Upstreamed) -> None:
        nonlocal sent
        connection.writer.transport.set_write_buffer_limits(0)
        await connection.request()
        connection.send(OK + b"Content-Length: %d\r\n\r\n" % size)
        part = b"x" * (256 * 1024)
        while sent < size:
            connection.send(part)
            await connection.writer.drain()
            sent += len(part)

    async def main() -> None:
        async with between(script) as b:
            b.client.send(get("/a"))
            await until(lambda: bool(b.listener.connections) and b.listener.connection.write_paused)
            (connection,) = b.gate.pool.connections
            await until(lambda: connection.paused)
            await turn(50)
            assert b.listener.connection.transport.get_write_buffer_size() < 2 * 1024 * 1024
            # What is on the way lies in the kernel's buffers.
            assert sent < size // 2
            assert (await b.client.head()).status == 200
            await b.client.skip(size)
            assert b.gate.statuses == [200]

    run(main())


@LOOPS
def test_an_upload_waits_for_an_upstream_that_reads_slowly(run: Run) -> None:
    size = 64 * 1024 * 1024

    async def main() -> None:
        go_on = asyncio.Event()

        async def script(connection: Upstreamed) -> None:
            await go_on.wait()
            await connection.head()
            await connection.skip(size)
            connection.send(HI)

        async with between(script) as b:
            b.client.send(get("/a", f"Content-Length: {size}", method="POST"))
            part, sent = b"x" * (256 * 1024), 0
            await until(lambda: bool(b.gate.pool.connections))
            (connection,) = b.gate.pool.connections

            async def upload() -> None:
                nonlocal sent
                while sent < size:
                    b.client.send(part)
                    await b.client.writer.drain()
                    sent += len(part)

            task = asyncio.create_task(upload())
            await until(lambda: not b.listener.connection.transport.is_reading())
            await turn(50)
            assert connection.transport.get_write_buffer_size() < 2 * 1024 * 1024
            assert sent < size // 2
            go_on.set()
            await task
            assert (await b.client.answer()).body == b"hi"

    run(main())


async def test_a_client_that_hangs_up_in_the_middle_of_its_body_takes_the_upstreams_connection_along() -> None:
    async with between() as b:
        b.client.send(get("/a", "Content-Length: 10", method="POST") + b"12345")
        await until(lambda: bool(b.upstream.connections))
        b.client.reset()
        await until(lambda: b.gate.finished == [(0, "")])
        assert not b.gate.pool.connections
        assert b.upstream.requests == []


# --- cut ---


PHASES = ("connecting", "waiting for a connection", "sent", "in the body", "in the answer", "paused", "tunnel", "ended")


async def test_cutting_ends_both_sides_and_finishes_once(subtests: pytest.Subtests) -> None:
    for phase in PHASES:
        with subtests.test(phase=phase):
            scripts: dict[str, Script] = {
                "in the answer": says(OK + b"Content-Length: 9\r\n\r\nhalf"),
                "paused": says(OK + b"Content-Length: 20000000\r\n\r\n" + b"x" * 20_000_000),
                "tunnel": tunnel(),
                "ended": says(HI),
            }
            async with between(scripts.get(phase, says(b"")), limit=1) as b:
                if phase == "waiting for a connection":
                    b.gate.pool.acquire(lambda connection, error: True)
                body = "Content-Length: 9" if phase == "in the body" else "X: y"
                b.client.send(UPGRADE if phase == "tunnel" else get("/a", body, method="POST"))
                await until(lambda: bool(b.gate.proxied))
                await _reach(phase, b)
                finished = list(b.gate.finished)
                b.gate.proxied[0].cut()
                b.gate.proxied[0].cut()
                assert len(b.gate.finished) == 1
                assert not finished or phase == "ended"
                if phase != "ended":
                    assert await b.client.closed() or phase == "paused"
                    await until(lambda: not b.listener.connections)
                await turn(20)
                assert len(b.gate.finished) == 1
                if phase not in ("ended", "connecting", "waiting for a connection"):
                    assert not b.gate.pool.connections
                    if phase not in ("paused", "in the answer"):
                        await until(b.upstream.connections[0].reader.at_eof)


async def _reach(phase: str, b: Between) -> None:
    if phase in ("sent", "in the body"):
        await until(lambda: bool(b.upstream.connections) and bool(b.upstream.connections[0].raw))
    elif phase in ("in the answer", "tunnel"):
        assert (await b.client.head()).status in (101, 200)
        if phase == "in the answer":
            assert await b.client.exactly(4) == b"half"
    elif phase == "paused":
        await until(lambda: b.listener.connection.write_paused)
    elif phase == "ended":
        assert (await b.client.answer()).status == 200
