"""Connections of a HAProxy to a real agent: what is understood, what ends the connection, and what is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ostiary_gateway.extauth.haproxy import spop
from ostiary_gateway.extauth.haproxy.agent import Agent
from ostiary_gateway.extauth.haproxy.connection import (
    FRAMES_PER_TURN,
    GREETING_SECONDS,
    MOST_FRAME_BYTES,
    MOST_OPEN,
    MOST_UNKNOWN,
    AgentConnection,
)
from ostiary_gateway.testing import FakeClock
from tests.support.spop_client import SECONDS, Haproxy, hello

RequestAttributes = tuple[AgentConnection, int, int, bytes]


@asynccontextmanager
async def agent(questions: list[RequestAttributes]) -> AsyncIterator[tuple[Agent, Haproxy]]:
    loop = asyncio.get_running_loop()
    made = Agent(lambda *question: questions.append(question), loop, FakeClock())
    server = await loop.create_server(made.connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    haproxy = Haproxy(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield made, haproxy
    finally:
        haproxy.writer.close()
        made.abort()
        server.close()


async def until(questions: list[RequestAttributes], count: int) -> None:
    async with asyncio.timeout(SECONDS):
        while len(questions) < count:
            await asyncio.sleep(0.001)


async def test_questions_are_answered_in_any_order() -> None:
    questions: list[RequestAttributes] = []
    async with agent(questions) as (_, haproxy):
        agreed = await haproxy.greet()
        assert (agreed[b"version"], agreed[b"max-frame-size"]) == (b"2.0", 16380)
        assert agreed[b"capabilities"] == b"pipelining"
        asked = b"".join(spop.frame(spop.NOTIFY, 7, number, b"payload %d" % number) for number in range(1, 4))
        # In parts that end anywhere.
        for at in range(0, len(asked), 5):
            haproxy.send(asked[at : at + 5])
            await asyncio.sleep(0)
        await until(questions, 3)
        assert [payload for _, _, _, payload in questions] == [b"payload 1", b"payload 2", b"payload 3"]
        for connection, stream, number, _ in reversed(questions):
            connection.answer(stream, number, b"x%d" % number)
        assert [(await haproxy.frame())[1] for _ in range(3)] == [b"\x07\x03x3", b"\x07\x02x2", b"\x07\x01x1"]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"supported_versions": b""}, spop.NO_VERSION),
        ({"supported_versions": spop.string(b"1.0, 3.0")}, spop.UNSUPPORTED_VERSION),
        ({"max_frame_size": b""}, spop.NO_FRAME_SIZE),
        ({"max_frame_size": spop.uint32(10)}, spop.BAD_FRAME_SIZE),
    ],
)
async def test_a_greeting_that_agrees_on_nothing_ends_the_connection(said: dict[str, bytes], status: int) -> None:
    async with agent([]) as (_, haproxy):
        haproxy.send(hello(**said))
        assert await haproxy.ended_with() == status


async def test_a_health_check_is_greeted_and_ended() -> None:
    async with agent([]) as (_, haproxy):
        await haproxy.greet(healthcheck=spop.TRUE)
        assert await haproxy.reader.read() == b""


async def test_what_is_no_frame_ends_the_connection(subtests: pytest.Subtests) -> None:
    cases = [
        (spop.frame(spop.NOTIFY, 1, 1, b""), spop.INVALID),
        ((MOST_FRAME_BYTES + 1).to_bytes(4, "big"), spop.TOO_BIG),
        (b"GET / HTTP/1.1\r\n\r\n", spop.TOO_BIG),
        (b"\x00\x00\x00\x01\x01", spop.TOO_BIG),
        (b"\x00\x00\x00\x07\x03\x00\x00\x00\x00\x01\x01", spop.NO_FRAGMENTS),
        (b"\x00\x00\x00\x07\x03\x00\x00\x00\x01\xff\xff", spop.INVALID),
    ]
    for data, status in cases:
        with subtests.test(data=data, status=status):
            async with agent([]) as (_, haproxy):
                haproxy.send(data)
                assert await haproxy.ended_with() == status


async def test_frames_of_unknown_types_are_ignored() -> None:
    questions: list[RequestAttributes] = []
    async with agent(questions) as (_, haproxy):
        await haproxy.greet()
        haproxy.send(spop.frame(77, 0, 0, b"?") + spop.frame(spop.NOTIFY, 1, 1, b"x"))
        await until(questions, 1)


async def test_so_many_questions_are_open_and_no_more() -> None:
    questions: list[RequestAttributes] = []
    async with agent(questions) as (_, haproxy):
        await haproxy.greet()
        for number in range(3 * MOST_OPEN):
            haproxy.send(spop.frame(spop.NOTIFY, 1, number, b"x" * 1000))
        await until(questions, MOST_OPEN)
        for _ in range(20):
            await asyncio.sleep(0)
        # What came in one piece with the last of them, and nothing after that.
        assert len(questions) < 2 * MOST_OPEN
        answered = 0
        while answered < 3 * MOST_OPEN:
            await until(questions, answered + 1)
            connection, stream, number, _ = questions[answered]
            connection.answer(stream, number, b"")
            answered += 1


async def test_who_does_not_greet_or_does_not_finish_a_frame_is_ended() -> None:
    questions: list[RequestAttributes] = []
    async with agent(questions) as (made, haproxy):
        await asyncio.sleep(0)
        async with asyncio.timeout(SECONDS):
            while not made.connections:
                await asyncio.sleep(0.001)
        (connection,) = made.connections
        assert connection.deadline <= made.loop.time() + GREETING_SECONDS
        await haproxy.greet()
        made.tick()
        assert connection.deadline == float("inf")
        haproxy.send(spop.frame(spop.NOTIFY, 1, 1, b"x") + b"\x00\x00")
        await until(questions, 1)
        assert connection.deadline < float("inf")
        connection.deadline = made.loop.time() - 1
        made.tick()
        kind, _ = await haproxy.frame()
        assert kind == spop.AGENT_DISCONNECT


async def test_a_connection_that_drains_answers_what_was_asked_and_ends() -> None:
    questions: list[RequestAttributes] = []
    async with agent(questions) as (made, haproxy):
        await haproxy.greet()
        haproxy.send(spop.frame(spop.NOTIFY, 1, 1, b"x"))
        await until(questions, 1)
        made.drain()
        assert made.busy
        connection, stream, number, _ = questions[0]
        connection.answer(stream, number, b"")
        assert (await haproxy.frame())[0] == spop.ACK
        assert await haproxy.ended_with() == spop.NORMAL


async def test_a_few_frames_are_handled_in_each_turn() -> None:
    questions: list[RequestAttributes] = []
    async with agent(questions) as (made, haproxy):
        await haproxy.greet()
        (connection,) = made.connections
        connection.data_received(b"".join(spop.frame(spop.NOTIFY, 7, number, b"x") for number in range(1, 101)))
        assert len(questions) == FRAMES_PER_TURN
        assert connection.run_turn()
        assert len(questions) == 2 * FRAMES_PER_TURN
        await until(questions, 100)


async def test_no_more_questions_are_taken_than_may_be_open_whatever_comes_in_one_read() -> None:
    questions: list[RequestAttributes] = []
    async with agent(questions) as (_, haproxy):
        await haproxy.greet()
        haproxy.send(b"".join(spop.frame(spop.NOTIFY, 7, number, b"x") for number in range(1, 3 * MOST_OPEN)))
        await until(questions, MOST_OPEN)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(questions) == MOST_OPEN
        for connection, stream, number, _ in questions[:100]:
            connection.answer(stream, number, b"")
        await until(questions, MOST_OPEN + 100)


async def test_who_asks_again_and_again_without_the_secret_is_not_listened_to() -> None:
    questions: list[RequestAttributes] = []
    async with agent(questions) as (made, haproxy):
        await haproxy.greet()
        (connection,) = made.connections
        for _ in range(MOST_UNKNOWN - 1):
            connection.note_caller(known=False)
        connection.note_caller(known=True)
        for _ in range(MOST_UNKNOWN - 1):
            connection.note_caller(known=False)
        assert not connection.transport.is_closing()
        connection.note_caller(known=False)
        assert await haproxy.ended_with() == spop.UNKNOWN
