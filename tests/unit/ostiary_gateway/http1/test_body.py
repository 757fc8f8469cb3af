"""A body comes at a least rate, within a time, and in no more pieces than are worth their cost."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.http1.body import CHUNK_BYTES, CHUNKS_PER_SECOND, FREE_CHUNKS, FREE_OVERHEAD, IncomingBody
from ostiary_gateway.http1.request_head import RequestRefused, ServerLimits
from tests.support.http1 import chunked, connected, get, listening, until

LIMITS = ServerLimits(body_timeout=60, body_rate=500, body_total=3600)


def receive(body: IncomingBody, *pieces: bytes, overhead: int = 5, now: float = 0.0) -> bytes:
    """What the connection does with one read."""
    for piece in pieces:
        body.add(piece)
    data = body.take()
    body.after_read(len(data) + overhead * len(pieces), now)
    return data


# --- time ---


def test_a_body_that_drips_in_is_late_after_the_timeout_and_what_its_bytes_are_worth() -> None:
    """S73: a byte every now and then must not buy another minute each time."""
    body = IncomingBody(LIMITS, 0.0, chunked=False)
    now = 0.0
    while now < body.deadline(now) and now < 10_000:
        receive(body, b"x", now=now)
        now += 10
    assert now == 70


def test_a_body_that_comes_fast_enough_has_its_time_and_no_more_than_that() -> None:
    body = IncomingBody(LIMITS, 0.0, chunked=False)
    now = 0.0
    while now < body.deadline(now):
        receive(body, b"x" * 6000, now=now)
        now += 10
    assert now == 3600


def test_a_pause_is_bounded_however_much_came_before_it() -> None:
    body = IncomingBody(LIMITS, 0.0, chunked=False)
    receive(body, b"x" * 10_000_000, now=1.0)
    assert body.deadline(1.0) == 61


def test_while_we_do_not_read_no_time_passes() -> None:
    body = IncomingBody(LIMITS, 0.0, chunked=False)
    receive(body, b"x", now=10.0)
    body.pause(10.0)
    body.pause(500.0)
    body.resume(1010.0)
    body.resume(1011.0)
    assert 1060 < body.deadline(1010.0) < 1061
    body.restart(2000.0)
    assert 2060 <= body.deadline(2000.0) < 2061


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 100_000)), max_size=40))
def test_no_body_outlives_its_rate_and_its_total_time(pieces: list[tuple[float, int]]) -> None:
    """S73."""
    body, now, received = IncomingBody(LIMITS, 0.0, chunked=False), 0.0, 0
    for pause, size in pieces:
        now += pause
        if now >= body.deadline(now - pause):
            return
        received += size
        receive(body, b"x" * size, now=now)
        assert now < 60 + received / 500 + 60
        assert now < 3600


@pytest.mark.parametrize("limits", [ServerLimits(), ServerLimits(body_rate=0)])
def test_without_a_rate_and_a_total_time_only_pauses_count(limits: ServerLimits) -> None:
    body = IncomingBody(limits, 0.0, chunked=False)
    assert body.deadline(1e6) == 1e6 + limits.body_timeout


# --- chunks ---


def test_the_pieces_of_one_read_are_handed_on_together() -> None:
    body = IncomingBody(LIMITS, 0.0, chunked=True)
    assert receive(body, b"a", b"b", b"c") == b"abc"
    assert receive(body, b"d") == b"d"


def test_countless_small_chunks_are_refused_within_one_read_too() -> None:
    body = IncomingBody(LIMITS, 0.0, chunked=True)
    with pytest.raises(RequestRefused, match="too many small chunks"):
        receive(body, *[b"x"] * (FREE_CHUNKS * 2))
    body = IncomingBody(LIMITS, 0.0, chunked=True)
    receive(body, *[b"x"] * FREE_CHUNKS)
    with pytest.raises(RequestRefused, match="too many small chunks"):
        receive(body, *[b"x"] * (FREE_CHUNKS // 10))


def test_chunks_of_some_size_may_be_as_many_as_they_like() -> None:
    body = IncomingBody(LIMITS, 0.0, chunked=True)
    for _ in range(10):
        receive(body, *[b"x" * CHUNK_BYTES] * FREE_CHUNKS)
    receive(IncomingBody(LIMITS, 0.0, chunked=True), *[b"x" * 20] * (FREE_CHUNKS * 5))


def test_somebody_who_types_is_not_refused() -> None:
    """A chunk a key, for hours."""
    body = IncomingBody(LIMITS, 0.0, chunked=True)
    for second in range(3600):
        receive(body, *[b"x"] * (CHUNKS_PER_SECOND // 2), now=float(second))


def test_what_stands_between_the_data_is_bounded() -> None:
    body = IncomingBody(LIMITS, 0.0, chunked=True)
    for _ in range(50):
        receive(body, b"x", overhead=FREE_OVERHEAD // 50)
    with pytest.raises(RequestRefused, match="beside its data"):
        receive(body, b"x", overhead=FREE_OVERHEAD // 20)


async def test_two_hundred_thousand_chunks_of_one_byte_are_refused_after_a_few() -> None:
    """S73: they cost no more than an ordinary request."""
    async with listening() as listener, connected(listener.port) as client:
        client.send(get("/", "Transfer-Encoding: chunked", method="POST") + chunked(*[b"x"] * 200_000))
        # The answer may be lost: the client is still writing when the connection is closed.
        with suppress(ConnectionError):
            assert (await client.answer()).status == 400
        await until(lambda: not listener.connections)
        assert len(listener.exchanges) == 1


async def test_small_chunks_reach_whoever_takes_them_in_few_pieces() -> None:
    parts: list[bytes] = []

    class Taker:
        def body(self, data: bytes) -> None:
            parts.append(data)

        def body_end(self) -> None:
            listener.exchanges[0].respond(200, [], b"ok")

        def client_lost(self) -> None: ...

        def client_full(self) -> None: ...

        def client_ready(self) -> None: ...

    async with (
        listening(lambda exchange: exchange.accept_body(Taker())) as listener,
        connected(listener.port) as client,
    ):
        client.send(get("/", "Transfer-Encoding: chunked", method="POST") + chunked(*[b"x"] * 4000))
        assert (await client.answer()).status == 200
        assert b"".join(parts) == b"x" * 4000
        assert len(parts) < 50


async def test_a_client_that_drips_is_sent_away_however_often_it_drips() -> None:
    """S73: with the connection's own clock, which nobody waits for."""
    limits = ServerLimits(body_timeout=60, body_rate=500)
    async with listening(limits=limits) as listener, connected(listener.port) as client:
        client.send(get("/", "Content-Length: 100000", method="POST") + b"x")
        await until(lambda: bool(listener.exchanges))
        connection = listener.connection
        first = connection.deadline
        for number in range(2, 20):
            client.send(b"x")
            await until(lambda number=number: listener.exchanges[0].received == number)  # type: ignore[misc]
        assert connection.deadline - first < 1
        listener.later(61)
        assert (await client.answer()).status == 408
