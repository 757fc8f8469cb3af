"""Workers and their supervisor ask and tell each other over a socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ostiary_gateway.replicas.worker_ipc import AnswerQuestion, Channel, NoOtherWorkers, WorkersBySupervisor


async def echo(question: str, data: object) -> object:
    return [question, data]


async def fail(question: str, data: object) -> object:
    raise RuntimeError("canary")


@asynccontextmanager
async def channels(
    left: AnswerQuestion = echo, right: AnswerQuestion = echo
) -> AsyncIterator[tuple[Channel, Channel, asyncio.StreamWriter]]:
    """Both ends, and the left one's writer."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    other_reader, other_writer = await asyncio.open_connection(sock=theirs)
    ends = Channel(reader, writer, left), Channel(other_reader, other_writer, right)
    running = [asyncio.ensure_future(end.run()) for end in ends]
    try:
        yield (*ends, writer)
    finally:
        for end in ends:
            end.close()
        await asyncio.gather(*running)


async def test_both_ends_may_ask() -> None:
    async with channels() as (left, right, _):
        assert await left.ask("a", {"x": 1}) == ["a", {"x": 1}]
        assert await right.ask("b") == ["b", None]


async def test_many_questions_at_once_get_each_their_own_answer() -> None:
    async with channels() as (left, _, _):
        answers = await asyncio.gather(*(left.ask("q", number) for number in range(100)))
    assert answers == [["q", number] for number in range(100)]


async def test_an_end_that_fails_answers_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with channels(right=fail) as (left, _, _):
        assert await left.ask("q") is None
        left.tell("news", 1)
        left.tell("news", 2)
        assert await left.ask("q") is None
    assert "canary" not in caplog.text


async def test_an_end_that_does_not_answer_in_time_has_no_answer() -> None:
    never = asyncio.Event()

    async def wait(question: str, data: object) -> object:
        await never.wait()
        return "too late"

    async with channels(right=wait) as (left, right, _):
        assert await left.ask("q", seconds=0) is None
        never.set()
        right.answer_by(echo)
        assert await left.ask("q") == ["q", None]


async def test_what_is_told_has_no_answer() -> None:
    heard: list[tuple[str, object]] = []

    async def hear(what: str, data: object) -> object:
        heard.append((what, data))
        return "heard"

    async with channels(right=hear) as (left, _, _):
        left.tell("news", [1, 2])
        assert await left.ask("q") == "heard"
    assert heard == [("news", [1, 2]), ("q", None)]


async def test_a_message_that_cannot_be_read_does_not_end_the_channel(caplog: pytest.LogCaptureFixture) -> None:
    async with channels() as (left, _, writer):
        for line in (b"{", b"[]", b'{"ask": 1, "id": 2}', b'{"ask": "q", "id": "x"}', b"{}"):
            writer.write(line + b"\n")
        assert await left.ask("q") == ["q", None]
    assert caplog.text.count("invalid message between workers") == 5


async def test_a_worker_that_is_alone_has_no_siblings() -> None:
    alone = NoOtherWorkers()
    alone.tell("news", 1)
    assert await alone.ask("q", 1) == []


async def test_siblings_are_asked_through_the_supervisor() -> None:
    passed_on: list[tuple[str, object]] = []

    async def supervise(question: str, data: object) -> object:
        passed_on.append((question, data))
        return ["one", "two"]

    async with channels(right=supervise) as (left, _, _):
        siblings = WorkersBySupervisor(left)
        siblings.tell("news", 1)
        assert await siblings.ask("q", 2) == ["one", "two"]
    assert passed_on == [("siblings", {"tell": "news", "data": 1}), ("siblings", {"ask": "q", "data": 2})]


async def test_a_supervisor_that_does_not_answer_knows_no_siblings() -> None:
    async with channels(right=fail) as (left, _, _):
        assert await WorkersBySupervisor(left).ask("q", 1) == []
