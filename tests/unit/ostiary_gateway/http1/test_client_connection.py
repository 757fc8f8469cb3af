"""Answers are read strictly, and a connection is used again only when that is safe."""

from __future__ import annotations

import asyncio

import pytest

from ostiary_gateway.http1.client_connection import LARGEST_HEAD, UpstreamConnection
from ostiary_gateway.http1.response import Framing, UpstreamLost
from tests.support.http1 import Upstreamed, chunked, honest, until, upstream
from tests.support.http1_client import OK, Recorder, answering, ask, pool_to

# --- reading ---

WHOLE = {
    "length": (OK + b"Content-Length: 2\r\n\r\nhi", Framing.LENGTH, b"hi"),
    "no length": (OK + b"Content-Length: 0\r\n\r\n", Framing.LENGTH, b""),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"h", b"i"), Framing.CHUNKED, b"hi"),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", Framing.NONE, b""),
    "204 with a length": (b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", Framing.NONE, b""),
    "304 with a length": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", Framing.NONE, b""),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", Framing.LENGTH, b"hi"),
    "interim before": (b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nhi", 1, b"hi"),
    "interim that speaks of a length": (
        b"HTTP/1.1 103 Early Hints\r\nContent-Length: 99\r\n\r\n"
        + OK
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + chunked(b"hi"),
        Framing.CHUNKED,
        b"hi",
    ),
    "interim that speaks of a coding": (
        b"HTTP/1.1 103 Early Hints\r\nTransfer-Encoding: chunked\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nhi",
        Framing.LENGTH,
        b"hi",
    ),
    "upgrade offered with an ordinary answer": (
        b"HTTP/1.1 426 Upgrade Required\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi",
        Framing.LENGTH,
        b"hi",
    ),
}


# They have no body, and speak of one: it may still come, so the connection is not used again.
ANNOUNCES_A_BODY = {
    WHOLE[name][0]
    for name in ("304 with a length", "interim that speaks of a length", "interim that speaks of a coding")
}


async def test_a_whole_answer_is_told_and_its_connection_used_again_if_its_end_is_certain(
    subtests: pytest.Subtests,
) -> None:
    for case, (answer, framing, body) in WHOLE.items():
        for name, split in [("whole", False), ("byte by byte", True)]:
            with subtests.test(f"{case}, {name}"):
                parts = [answer[i : i + 1] for i in range(len(answer))] if split else [answer]
                async with upstream(answering(*parts)) as made, pool_to(made) as pool:
                    for _ in range(2):
                        recorder = await ask(pool)
                        assert recorder.over.result() is None
                        assert (recorder.framing, recorder.body) == (framing, body)
                    assert len(made.connections) == (2 if answer in ANNOUNCES_A_BODY else 1)


async def test_trailers_are_told() -> None:
    answer = OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"hi", trailers=b"X-Sum: 1\r\n")
    async with upstream(answering(answer)) as made, pool_to(made) as pool:
        assert (await ask(pool)).trailers == [(b"X-Sum", b"1")]


async def test_an_answer_without_length_ends_with_the_connection() -> None:
    async with upstream(answering(OK + b"\r\nall of it", then="close")) as made, pool_to(made) as pool:
        recorder = await ask(pool)
        assert (recorder.framing, recorder.body, recorder.over.result()) == (Framing.CLOSE, b"all of it", None)
        assert not pool.connections


async def test_the_length_of_an_interim_answer_is_not_the_answers() -> None:
    """P6. Else more than that length would follow, and be read as the next answer."""
    interim = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 3\r\n\r\n"
    async with upstream(answering(interim + OK + b"\r\nall of it", then="close")) as made, pool_to(made) as pool:
        recorder = await ask(pool)
        assert (recorder.framing, recorder.body) == (Framing.CLOSE, b"all of it")


@pytest.mark.parametrize("length", [b"", b"Content-Length: 99\r\n", b"Content-Length: 0\r\n"])
async def test_the_answer_to_a_head_has_no_body_whatever_it_announces(length: bytes) -> None:
    async with upstream(answering(OK + length + b"\r\n")) as made, pool_to(made) as pool:
        for _ in range(2):
            recorder = await ask(pool, is_head=True)
            assert (recorder.status, recorder.framing, recorder.body) == (200, Framing.NONE, b"")
        assert len(made.connections) == (2 if b"99" in length else 1)


UNREADABLE = {
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
    "length and coding": OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "signed length": OK + b"Content-Length: +2\r\n\r\nhi",
    "unknown coding": OK + b"Transfer-Encoding: gzip\r\n\r\nhi",
    "coding in two lines": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two codings": OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare line feed": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "folded": OK + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "NUL": OK + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "HTTP/2.0": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
    "status 000": b"HTTP/1.1 000 X\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "status 199": b"HTTP/1.1 199 X\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "status 104": b"HTTP/1.1 104 X\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "status in letters": b"HTTP/1.1 abc OK\r\nContent-Length: 0\r\n\r\n",
    "101 without a protocol": b"HTTP/1.1 101 Switching Protocols\r\n\r\nraw",
    "no HTTP at all": b"SSH-2.0-OpenSSH\r\n",
    "too many headers": OK + b"X: a\r\n" * 300 + b"\r\n",
    "too many trailers": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: a\r\n" * 300 + b"\r\n",
    "head without end": OK + b"X: " + b"a" * (4 * LARGEST_HEAD),
    "headers without end": OK + b"X: a\r\n" * 200_000,
    "trailer without end": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * (4 * LARGEST_HEAD),
    "interim without end": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100,
}


async def test_an_answer_that_cannot_be_read_is_lost_and_its_connection_dropped(subtests: pytest.Subtests) -> None:
    """P6."""
    for case, answer in UNREADABLE.items():
        with subtests.test(case):
            async with upstream(answering(answer)) as made, pool_to(made) as pool:
                lost = (await ask(pool)).over.result()
                assert lost is not None
                assert lost.answered
                assert not pool.connections
                made.script = honest
                assert (await ask(pool)).status == 200
                assert len(made.connections) == 2


CUT = {
    "nothing": b"",
    "in the head": OK + b"Content-Le",
    "after the head": OK + b"Content-Length: 9\r\n\r\n",
    "in the body": OK + b"Content-Length: 9\r\n\r\nhalf",
    "between chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    "before the last line": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n",
    "after an interim answer": b"HTTP/1.1 103 Early Hints\r\n\r\n",
}


async def test_half_an_answer_is_none(subtests: pytest.Subtests) -> None:
    for case, answer in CUT.items():
        for then in ["close", "reset"]:
            with subtests.test(case, then=then):
                async with upstream(answering(answer, then=then)) as made, pool_to(made) as pool:
                    lost = (await ask(pool)).over.result()
                    assert lost is not None
                    assert not lost.timeout
                    if then == "close":
                        assert lost.answered == (answer != b"")
                    assert not pool.connections


async def test_an_answer_until_close_that_is_reset_is_lost() -> None:
    async with upstream(answering(OK + b"\r\nhalf", then="reset")) as made, pool_to(made) as pool:
        assert (await ask(pool)).over.result() is not None


# --- using it again ---

NOT_AGAIN = {
    "said so": OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "said more than the answer": OK + b"Content-Length: 2\r\n\r\nhi" + OK + b"Content-Length: 8\r\n\r\nsmuggled",
    "body after 204": b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nhi",
}


@pytest.mark.parametrize("answer", NOT_AGAIN.values(), ids=NOT_AGAIN.keys())
async def test_a_connection_is_not_used_again_after_such_an_answer(answer: bytes) -> None:
    """P6."""
    async with upstream(answering(answer)) as made, pool_to(made) as pool:
        for _ in range(2):
            recorder = await ask(pool)
            assert recorder.over.result() is None
            assert recorder.body in (b"hi", b"")
        assert len(made.connections) == 2


@pytest.mark.parametrize("extra", [b"", b"Connection: close\r\n"])
async def test_a_body_after_the_answer_to_a_head_spoils_the_connection(extra: bytes) -> None:
    async with upstream(answering(OK + extra + b"Content-Length: 2\r\n\r\nhi")) as made, pool_to(made) as pool:
        for _ in range(2):
            assert (await ask(pool, is_head=True)).over.result() is None
        assert len(made.connections) == 2


async def test_what_an_idle_connection_says_ends_it() -> None:
    """P6."""
    async with upstream() as made, pool_to(made) as pool:
        await ask(pool)
        made.connections[0].send(OK + b"Content-Length: 8\r\n\r\nsmuggled")
        await until(lambda: not pool.connections)
        recorder = await ask(pool)
        assert recorder.body == b""
        assert len(made.connections) == 2


async def test_an_answer_before_the_request_was_sent_is_given_and_the_connection_dropped() -> None:
    """P6. The rest of the body would be read as the next request."""

    async def early(connection: Upstreamed) -> None:
        await connection.head()
        connection.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await connection.rest()

    async with upstream(early) as made, pool_to(made) as pool:
        recorder = Recorder()

        def ready(connection: UpstreamConnection | None, error: UpstreamLost | None) -> bool:
            assert connection is not None
            connection.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf", recorder, is_head=False)
            connection.request_complete = False
            return True

        pool.acquire(ready)
        assert await recorder.end() is None
        assert recorder.status == 413
        assert not pool.connections


async def test_a_connection_that_was_paused_comes_back_reading() -> None:
    async with upstream(answering()) as made, pool_to(made) as pool:
        recorder = Recorder()
        pool.acquire(recorder.ready)
        await until(lambda: recorder.connection is not None)
        assert recorder.connection is not None
        recorder.connection.pause()
        # What TLS had decrypted already is still delivered after a pause.
        recorder.connection.data_received(OK + b"Content-Length: 0\r\n\r\n")
        assert await recorder.end() is None
        assert recorder.connection.transport.is_reading()


# --- time ---


async def test_an_upstream_that_does_not_answer_is_given_up_in_time() -> None:
    async with upstream(answering()) as made, pool_to(made) as pool:
        recorder = Recorder()
        pool.acquire(recorder.ready)
        await until(lambda: recorder.connection is not None)
        assert recorder.connection is not None
        recorder.connection.deadline = asyncio.get_running_loop().time() + 60
        pool.tick(asyncio.get_running_loop().time() + 59)
        assert not recorder.over.done()
        pool.tick(asyncio.get_running_loop().time() + 61)
        lost = await recorder.end()
        assert lost is not None
        assert lost.timeout
        assert not pool.connections


async def test_an_answer_that_stops_in_the_middle_is_given_up_in_time() -> None:
    async with upstream(answering(OK + b"Content-Length: 9\r\n\r\nhalf")) as made, pool_to(made) as pool:
        recorder = Recorder()
        pool.acquire(recorder.ready)
        await until(lambda: recorder.connection is not None)
        assert recorder.connection is not None
        recorder.connection.patience = 60
        await until(lambda: recorder.body == b"half")
        now = asyncio.get_running_loop().time()
        pool.tick(now + 59)
        # While it is we who do not read, it is not late.
        recorder.connection.pause()
        pool.tick(now + 1000)
        recorder.connection.resume()
        assert not recorder.over.done()
        pool.tick(now + 1000)
        lost = await recorder.end()
        assert lost is not None
        assert lost.timeout
