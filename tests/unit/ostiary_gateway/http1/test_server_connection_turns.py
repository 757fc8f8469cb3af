"""How much of one connection's input is handled in an iteration of the loop, and what happens to the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from ostiary_gateway.http1 import fair_queue
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.fair_queue import FREE_STARTS, FairQueue
from ostiary_gateway.http1.request_head import ServerLimits
from ostiary_gateway.http1.server_connection import Server, ServerConnection
from tests.support.http1 import chunked, connected, get, listening, until
from tests.support.http1_server import POST, Held, at_once


class Loop:
    """A loop that the test turns; its clock stands still, so that a turn is the only bound."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []

    def time(self) -> float:
        return 0.0

    def call_soon(self, work: Callable[[], object]) -> None:
        self.soon.append(work)

    def iterate(self) -> None:
        soon, self.soon = self.soon, []
        for work in soon:
            work()


class Transport:
    def __init__(self) -> None:
        self.written, self._reading, self.closing = b"", True, False

    def get_extra_info(self, name: str) -> object:
        return ("192.0.2.1", 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_reading(self) -> bool:
        return self._reading


class Site:
    """A server whose slices are used up with the first request of each iteration."""

    def __init__(self, handle: Callable[[Exchange], None] = at_once) -> None:
        self.loop, self.time = Loop(), 0.0
        self.targets: list[bytes] = []
        self._handle = handle
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.queue = FairQueue(loop, now=lambda: self.time)
        self.queue.starts = FREE_STARTS
        self.server = Server(self.handle, ServerLimits(), loop, queue=self.queue)

    def handle(self, exchange: Exchange) -> None:
        self.targets.append(exchange.request.target)
        self.time += fair_queue.SLICE_SECONDS
        self._handle(exchange)

    def connect(self) -> tuple[ServerConnection, Transport]:
        connection, transport = self.server.connection(), Transport()
        connection.connection_made(cast("asyncio.Transport", transport))
        return connection, transport


def test_one_request_of_a_read_is_started_and_the_others_one_in_each_iteration() -> None:
    site = Site()
    connection, transport = site.connect()
    connection.data_received(b"".join(get(f"/{n}") for n in range(100)))
    assert site.targets == [b"/0"]
    assert not transport.is_reading()
    for started in range(2, 101):
        site.loop.iterate()
        assert len(site.targets) == started
    assert site.targets == [b"/%d" % n for n in range(100)]
    assert transport.is_reading()
    assert site.queue.held == 0
    site.loop.iterate()
    assert site.loop.soon == []
    assert transport.written.count(b"HTTP/1.1 401 ") == 100


@pytest.mark.parametrize("size", [1, 7, 64])
def test_several_reads_of_one_iteration_start_one_request(size: int) -> None:
    """As libuv delivers them: up to 32 of one connection."""
    site = Site()
    connection, _ = site.connect()
    data = get("/first") * 32
    for start in range(0, len(data), size):
        connection.data_received(data[start : start + size])
    assert site.targets == [b"/first"]
    while site.loop.soon:
        site.loop.iterate()
    assert len(site.targets) == 32


def test_when_the_time_of_an_iteration_is_used_up_other_connections_wait_for_the_next_one() -> None:
    site = Site()
    connections = [site.connect()[0] for _ in range(3)]
    for number, connection in enumerate(connections):
        connection.data_received(get(f"/{number}"))
    assert site.targets == [b"/0"]
    site.loop.iterate()
    assert site.targets == [b"/0", b"/1"]
    site.loop.iterate()
    assert site.targets == [b"/0", b"/1", b"/2"]


def test_a_connection_with_a_backlog_gets_every_other_turn() -> None:
    site = Site()
    (flood, _), (other, _) = site.connect(), site.connect()
    flood.data_received(get("/flood") * 100)
    for _ in range(3):
        other.data_received(get("/other"))
        site.loop.iterate()
    assert site.targets.count(b"/other") == 3
    assert site.targets.count(b"/flood") <= 4


def test_bodies_chunks_and_trailers_between_requests_are_read_as_before() -> None:
    site = Site()
    connection, transport = site.connect()
    body = b"GET /smuggled HTTP/1.1\r\n\r\n"
    chunks = POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, body)
    trailers = POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: y\r\n\r\n"
    pieces = [get("/1", method="PUT", body=body), chunks, b"\r\n\r\n", get("/2"), trailers, get("/3"), get("/4")]
    connection.data_received(b"".join(pieces))
    while site.loop.soon:
        site.loop.iterate()
    assert site.targets == [b"/1", b"/p", b"/2", b"/p", b"/3", b"/4"]
    assert transport.written.count(b"HTTP/1.1 401 ") == 6
    assert not transport.closing


def test_a_bad_request_in_the_rest_ends_the_connection_after_the_responses_before_it() -> None:
    site = Site()
    connection, transport = site.connect()
    connection.data_received(get("/1") + get("/2") + b"garbage\r\n\r\n" + get("/3"))
    while site.loop.soon:
        site.loop.iterate()
    assert site.targets == [b"/1", b"/2"]
    assert transport.closing
    assert transport.written.count(b"HTTP/1.1 401 ") == 2
    assert transport.written.count(b"HTTP/1.1 400 ") == 1
    assert site.queue.held == 0


def test_what_is_not_parsed_is_bounded_for_all_connections_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostiary_gateway.http1.server_connection.MOST_HELD_BYTES", 50_000)
    site = Site()
    kept, rejected = site.connect(), site.connect()
    kept[0].data_received(get("/kept") * 800)
    rejected[0].data_received(get("/rejected") * 800)
    assert 10_000 < site.queue.held < 50_000
    while site.loop.soon:
        site.loop.iterate()
    assert site.targets.count(b"/kept") == 800
    assert rejected[1].written.count(b"HTTP/1.1 400 ") == 1
    assert rejected[1].closing
    assert not kept[1].closing
    assert site.queue.held == 0


def test_a_connection_that_is_lost_gives_back_what_it_held() -> None:
    site = Site()
    connection, transport = site.connect()
    connection.data_received(get("/1") * 100)
    assert site.queue.held > 0
    transport.closing = True
    connection.connection_lost(None)
    assert site.queue.held == 0
    while site.loop.soon:
        site.loop.iterate()
    assert len(site.targets) == 1


def test_a_request_that_waits_for_its_turn_is_answered_before_a_drained_connection_ends() -> None:
    site = Site()
    connections = [site.connect() for _ in range(2)]
    for connection, _ in connections:
        connection.data_received(get("/1"))
    connection, transport = connections[1]
    assert connection.busy
    connection.drain()
    assert not transport.closing
    site.loop.iterate()
    assert b"HTTP/1.1 401 " in transport.written
    assert b"Connection: close" in transport.written
    assert transport.closing


def test_while_a_request_waits_for_its_turn_its_client_is_not_late() -> None:
    site = Site()
    site.connect()[0].data_received(get("/1"))
    connection, _ = site.connect()
    connection.data_received(get("/2") + b"GET /3")
    assert connection.deadline == float("inf")
    site.loop.iterate()
    assert connection.deadline == ServerLimits().head_timeout


async def test_a_client_that_hangs_up_after_its_request_still_gets_the_response() -> None:
    async with listening(at_once) as listener, connected(listener.port) as client:
        client.send(get("/1") * 50)
        client.writer.write_eof()
        for _ in range(50):
            assert (await client.answer()).status == 401
        assert await client.closed()


async def test_a_connection_whose_responses_are_not_read_gets_no_turn() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get("/1"))
        await until(lambda: bool(held.exchanges))
        connection = listener.connection
        connection.pause_writing()
        held.exchanges[0].respond(200, [], b"1")
        connection.data_received(get("/2") + get("/3"))
        assert not connection._queued
        connection.resume_writing()
        await until(lambda: len(held.exchanges) == 2)
        held.exchanges[1].respond(200, [], b"2")
        await until(lambda: len(held.exchanges) == 3)
        held.exchanges[2].respond(200, [], b"3")
        assert [(await client.answer()).body for _ in range(3)] == [b"1", b"2", b"3"]
