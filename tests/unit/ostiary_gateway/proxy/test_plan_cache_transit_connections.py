"""A request in transit, and what becomes of the connection of its client meanwhile."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.http1.exchange import Exchange
from tests.support.http1 import connected, turn, until
from tests.unit.ostiary_gateway.proxy.gateways import (
    cut,
)
from tests.unit.ostiary_gateway.proxy.transit_scene import (
    UNTIL_KNOWN,
    Scene,
    scene,
)

# --- ends of the client and of the worker ---


async def test_a_drain_waits_for_it_and_its_answer_says_that_the_connection_ends(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.begin()
        stopping = asyncio.create_task(it.gateway.worker.close(drain=60.0))
        await until(lambda: not it.under_way)
        assert not stopping.done()
        answer = await it.answer()
        assert (answer.status, answer.body, answer.one("Connection")) == (200, b"ok", b"close")
        assert await it.client.closed()
        await stopping
        it.is_over()


async def test_an_answer_that_comes_after_the_stop_was_announced_says_so(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.begin()
        it.gateway.worker._announce_end()
        assert len(it.under_way) == 1
        answer = await it.answer()
        assert (answer.status, answer.one("Connection")) == (200, b"close")
        assert await it.client.closed()
        it.is_over()


async def test_a_stop_that_does_not_wait_records_that_it_was_cut(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.begin()
        await it.gateway.worker.close(drain=0.0)
        await cut(it.client)
        it.is_over()
        assert await it.codes() == [*([200] * UNTIL_KNOWN), 0]


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_goes_away_frees_its_seat_and_the_upstream(tmp_path: Path, how: str) -> None:
    async with scene(tmp_path) as it, connected(it.gateway.port) as other:
        await it.begin(client=other)
        if how == "close":
            other.writer.close()
        else:
            other.reset()
        await until(it.remote.reader.at_eof)
        it.is_over()
        assert await it.codes() == [*([200] * UNTIL_KNOWN), 0]


# --- what comes on the connection meanwhile ---


async def test_requests_behind_it_get_their_answers_in_order(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.begin()
        for number in range(3):
            it.client.send(it.gateway.request(f"/{number}"))
        await turn(20)
        it.answering.holds = False
        assert (await it.answer()).status == 200
        for _ in range(3):
            assert (await it.client.answer()).status == 200
        assert [request.target for request in it.made.requests[-3:]] == [b"/0", b"/1", b"/2"]
        it.is_over()


@pytest.mark.parametrize("unfolds", [False, True])
async def test_garbage_behind_it_ends_the_connection_after_its_answer(tmp_path: Path, unfolds: bool) -> None:
    async with scene(tmp_path) as it:
        (connection,) = it.gateway.worker._http.connections
        await it.begin()
        it.client.send(b"\0\1\2 garbage\r\n\r\n")
        await until(lambda: connection.failed)
        if unfolds:
            it.engine.tick()
        answer = await it.answer()
        assert (answer.status, answer.body, answer.one("Connection")) == (200, b"ok", b"close")
        assert await it.client.closed()
        it.is_over()


async def test_garbage_ends_the_connection_also_if_it_comes_after_a_tick(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        (connection,) = it.gateway.worker._http.connections
        await it.begin()
        it.engine.tick()
        it.client.send(b"\0\1\2 garbage\r\n\r\n")
        await until(lambda: connection.failed)
        answer = await it.answer()
        assert (answer.status, answer.one("Connection")) == (200, b"close")
        assert await it.client.closed()


# So much comes in one read, and is more than may wait to be sent.
LARGE = b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + bytes(50_000)


async def fill(it: Scene) -> int:
    """Answer a client that does not read, until no more is taken for it; returns how many answers that were."""
    await it.begin()
    await it.answer()
    (connection,) = it.gateway.worker._http.connections
    ends: list[Any] = [it.client.writer.get_extra_info("socket"), connection.transport.get_extra_info("socket")]
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    it.client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    answers = 0
    while not connection.write_paused:
        await it.send(it.gateway.request())
        it.remote.send(LARGE)
        answers += 1
        await until(lambda: not it.under_way)
    return answers


async def test_a_large_answer_to_a_client_that_does_not_read_is_over_for_all_others(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        answers = await fill(it)
        (connection,) = it.gateway.worker._http.connections
        (pooled,) = it.gateway.worker.app.routes.upstreams[0].pool.connections
        assert not connection.busy
        it.is_over()
        assert not pooled.paused, "it may serve others meanwhile"
        assert connection.deadline < float("inf"), "the client has so long to read"
        it.client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(answers):
            assert len((await it.client.answer()).body) == 50_000
        it.answering.holds = False
        assert (await it.gateway.ask()).status == 200
        assert await it.codes() == [200] * (UNTIL_KNOWN + 1 + answers + 1)


async def test_unread_bytes_of_its_answer_count_for_the_user(tmp_path: Path) -> None:
    async with scene(tmp_path, limits={"unreadPerUser": 20_000}) as it:
        await fill(it)
        await until(lambda: not it.gateway.worker._http.connections)
        assert it.gateway.worker.app.shared.limits.unread == 0
        it.is_over()


async def test_a_client_that_stops_reading_before_the_answer_slows_the_upstream_down(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.begin()
        (connection,) = it.gateway.worker._http.connections
        (pooled,) = it.gateway.worker.app.routes.upstreams[0].pool.connections
        states = []
        for change in (connection.pause_writing, connection.resume_writing):
            change()
            states.append(pooled.paused)
        assert states == [True, False]
        assert (await it.answer()).status == 200
        it.is_over()


async def test_an_upstream_that_takes_no_more_while_it_is_sent_does_not_hang_it(tmp_path: Path) -> None:
    """The head leaves at once, because it is long, and the upstream says that it is full before we have begun."""
    async with scene(tmp_path) as it:
        await it.begin()
        await it.answer()
        (pooled,) = it.gateway.worker.app.routes.upstreams[0].pool.connections
        (connection,) = it.gateway.worker._http.connections
        end: Any = pooled.transport.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        pooled.transport.limit_write_buffer(1 << 30)
        remote = it.made.connections[0]
        remote.writer.transport.pause_reading()  # type: ignore[attr-defined]
        # It has not read the rest of an earlier request yet, so there is no room for the head.
        while not (waiting := pooled.transport.get_write_buffer_size()):
            pooled.write(b"\r\n" * 10_000)
        pooled.transport.limit_write_buffer(waiting + 1)
        it.client.send(it.gateway.request("/x", "Tracestate: " + "a" * 17_000))
        await until(lambda: connection.busy)
        assert it.under_way == []
        assert isinstance(connection._active, Exchange)
