"""Idle connections are used again, and requests wait in order when all are busy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from ostiary_gateway.http1.client_connection import UpstreamAddress
from ostiary_gateway.http1.client_pool import Pool
from tests.support.http1 import Upstreamed, honest, until, upstream
from tests.support.http1_client import OK, Recorder, answering, ask, pool_to

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]


@LOOPS
def test_a_connection_is_used_again_last_in_first_out(run: Run) -> None:
    async def main() -> None:
        async with upstream() as made, pool_to(made) as pool:
            recorders = [Recorder() for _ in range(3)]
            for recorder in recorders:
                pool.acquire(recorder.ready)
            for recorder in recorders:
                assert await recorder.end() is None
            used = [(await ask(pool)).connection for _ in range(3)]
            assert len(set(map(id, used))) == 1
            assert len(made.connections) == 3

    run(main())


async def test_above_the_limit_requests_wait_in_order_and_beyond_the_queue_they_do_not() -> None:
    release = asyncio.Event()

    async def script(connection: Upstreamed) -> None:
        await release.wait()
        await honest(connection)

    async with upstream(script) as made, pool_to(made, limit=1, queue=2) as pool:
        order: list[int] = []
        recorders = [Recorder() for _ in range(4)]
        for n, recorder in enumerate(recorders):
            recorder.over.add_done_callback(lambda _, n=n: order.append(n))  # type: ignore[misc]
            pool.acquire(recorder.ready)
        lost = await recorders[3].end()
        assert lost is not None
        assert not lost.answered
        assert not lost.timeout
        release.set()
        for recorder in recorders[:3]:
            assert await recorder.end() is None
        assert order == [3, 0, 1, 2]
        assert len(made.connections) == 1


async def test_who_waits_too_long_for_a_connection_is_told_so() -> None:
    now = asyncio.get_running_loop().time
    async with upstream(answering()) as made, pool_to(made, limit=1, connect_timeout=60) as pool:
        first, second = Recorder(), Recorder()
        begun = now()
        pool.acquire(first.ready)
        pool.acquire(second.ready)
        pool.tick(begun + 59)
        assert not second.over.done()
        pool.tick(now() + 61)
        assert await second.end() is not None
        assert not first.over.done()


async def test_a_failed_connection_does_not_keep_those_who_wait_behind_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    pool = Pool(UpstreamAddress("127.0.0.1", port), asyncio.get_running_loop(), limit=1)
    recorders = [Recorder() for _ in range(5)]
    for recorder in recorders:
        pool.acquire(recorder.ready)
    for recorder in recorders:
        lost = await recorder.end()
        assert lost is not None
        assert "connection failed" in str(lost)


async def test_a_thousand_who_gave_up_waiting_are_passed_over() -> None:
    async with upstream() as made, pool_to(made, limit=1) as pool:
        first, last = Recorder(), Recorder()
        pool.acquire(first.ready)
        for _ in range(2000):
            pool.acquire(lambda connection, error: False)
        pool.acquire(last.ready)
        assert await first.end() is None
        assert await last.end() is None
        assert len(made.connections) == 1


async def test_a_connection_that_nobody_wants_any_more_when_it_is_there_is_kept_for_others() -> None:
    async with upstream() as made, pool_to(made) as pool:
        pool.acquire(lambda connection, error: False)
        await until(lambda: bool(pool._idle))
        assert (await ask(pool)).status == 200
        assert len(made.connections) == 1


async def test_a_fresh_one_at_the_limit_takes_the_place_of_an_idle_one() -> None:
    async with upstream() as made, pool_to(made, limit=1) as pool:
        await ask(pool)
        recorder = Recorder()
        pool.acquire(recorder.ready, fresh=True)
        assert await recorder.end() is None
        assert len(made.connections) == 2


async def test_idle_connections_are_closed_after_a_while() -> None:
    async with upstream() as made, pool_to(made, idle_timeout=60) as pool:
        await ask(pool)
        now = asyncio.get_running_loop().time()
        pool.tick(now + 59)
        assert pool.connections
        pool.tick(now + 61)
        assert not pool.connections
        await ask(pool)
        assert len(made.connections) == 2


async def test_a_closed_pool_keeps_nothing_and_tells_who_waits() -> None:
    async with upstream(answering()) as made, pool_to(made, limit=1) as pool:
        first, second = Recorder(), Recorder()
        pool.acquire(first.ready)
        pool.acquire(second.ready)
        await until(lambda: first.connection is not None)
        pool.close()
        assert await second.end() is not None
        assert first.connection is not None
        first.connection.data_received(OK + b"Content-Length: 0\r\n\r\n")
        assert await first.end() is None
        assert not pool.connections
