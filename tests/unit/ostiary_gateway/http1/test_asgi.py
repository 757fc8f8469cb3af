"""ASGI applications behind our own connection code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ostiary_gateway.http1 import asgi
from ostiary_gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary_gateway.http1.exchange import Exchange
from tests.support.http1 import Listener, chunked, connected, get, listening, until


class Served:
    """Lets *application* answer everything, and keeps what became of it."""

    def __init__(self, application: asgi.Application, limit: int = 1000) -> None:
        self._application, self._limit = application, limit
        self.outcomes: list[Any] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(exchange))
        self._tasks.add(task)

    async def _serve(self, exchange: Exchange) -> None:
        try:
            headers = [(b"Audit-Id", b"1")]
            outcome: Any = await asgi.serve(
                self._application, exchange, limit=self._limit, state={"user": "alice"}, headers=headers
            )
        except Exception as error:
            outcome = type(error)
            if not exchange.gone and not exchange.head_sent:
                exchange.respond(500, [], b"")
        self.outcomes.append(outcome)


@asynccontextmanager
async def serving(application: asgi.Application, limit: int = 1000) -> AsyncIterator[tuple[Listener, Served]]:
    served = Served(application, limit)
    async with listening(served) as listener:
        yield listener, served


def answering(status: int, *parts: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> asgi.Application:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    return application


async def test_the_request_arrives_as_asgi_wants_it() -> None:
    seen: dict[str, Any] = {}

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope, body=(await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(application) as (listener, served), connected(listener.port) as client:
        request = get("/a%20b/c?d=e", "X-Own: 1", "Transfer-Encoding: chunked", method="POST")
        answer = await client.ask(request + chunked(b"bo", b"dy"))
        assert (answer.status, answer.body, answer.one("Audit-Id")) == (200, b"ok", b"1")
        assert (seen["method"], seen["path"], seen["raw_path"], seen["query_string"]) == (
            "POST",
            "/a b/c",
            b"/a%20b/c",
            b"d=e",
        )
        assert (b"x-own", b"1") in seen["headers"]
        assert (seen["body"], seen["state"], seen["client"], seen["scheme"]) == (
            b"body",
            {"user": "alice"},
            ("127.0.0.1", 0),
            "http",
        )
        assert served.outcomes == [200]


@pytest.mark.parametrize("parts", [(), (b"one",), (b"one", b"", b"two")])
async def test_an_answer_without_a_length_is_chunked_and_the_connection_goes_on(parts: tuple[bytes, ...]) -> None:
    async with serving(answering(200, *parts)) as (listener, _), connected(listener.port) as client:
        for _ in range(2):
            answer = await client.ask(get("/"))
            assert (answer.body, answer.one("Transfer-Encoding")) == (b"".join(parts), b"chunked")


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_says_nothing_of_one(status: int) -> None:
    async with serving(answering(status, b"dropped")) as (listener, _), connected(listener.port) as client:
        for _ in range(2):
            answer = await client.ask(get("/"))
            assert (answer.status, answer.one("Transfer-Encoding"), answer.body) == (status, None, b"")


async def test_head_gets_the_head() -> None:
    async with serving(answering(200, b"body")) as (listener, _), connected(listener.port) as client:
        for _ in range(2):
            assert (await client.ask(get("/", method="HEAD"), "HEAD")).status == 200


async def test_http10_gets_no_chunks() -> None:
    async with serving(answering(200, b"one", b"two")) as (listener, _), connected(listener.port) as client:
        answer = await client.ask(b"GET / HTTP/1.0\r\n\r\n")
        assert (answer.body, answer.one("Transfer-Encoding")) == (b"onetwo", None)


@pytest.mark.parametrize("framing", ["Content-Length: 2000", "Transfer-Encoding: chunked"])
async def test_a_body_that_is_too_large_never_reaches_the_application(framing: str) -> None:
    async with serving(answering(200)) as (listener, served), connected(listener.port) as client:
        body = b"x" * 2000 if "Length" in framing else chunked(b"x" * 2000)
        assert (await client.ask(get("/", framing, method="POST") + body)).status == 500
        assert served.outcomes == [BodyTooLarge]
        assert (await client.ask(get("/"))).status == 200


async def test_an_application_that_fails_before_its_answer_leaves_the_answer_to_us() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError

    async with serving(application) as (listener, served), connected(listener.port) as client:
        assert (await client.ask(get("/"))).status == 500
        assert served.outcomes == [RuntimeError]


async def test_an_application_that_stops_in_the_middle_cuts_the_connection() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async with serving(application) as (listener, _), connected(listener.port) as client:
        with pytest.raises((EOFError, ConnectionResetError)):
            await client.ask(get("/"))


async def test_an_application_learns_that_the_client_has_gone() -> None:
    told: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        told.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async with serving(application) as (listener, served), connected(listener.port) as client:
        client.send(get("/"))
        await until(lambda: bool(listener.exchanges) and listener.exchanges[0].responder is not None)
        client.reset()
        await until(lambda: bool(served.outcomes))
        assert (told, served.outcomes) == (["http.disconnect"], [ClientGone])


async def test_an_application_waits_for_a_client_that_reads_slowly() -> None:
    sent = 0

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Length", b"64000000")]})
        for n in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 64_000, "more_body": n < 999})
            sent += 1

    async with serving(application) as (listener, served), connected(listener.port) as client:
        client.send(get("/"))
        await until(lambda: bool(listener.connections) and listener.connection.write_paused)
        assert sent < 900
        assert (await client.head()).status == 200
        await client.skip(64_000_000)
        await until(lambda: served.outcomes == [200])


async def test_an_application_whose_last_part_fills_the_buffer_ends() -> None:
    """Once the answer has ended, nobody tells the application any more that there is room again."""
    size = 16_000_000
    async with serving(answering_at_once(b"x" * size)) as (listener, served), connected(listener.port) as client:
        client.send(get("/"))
        assert (await client.head()).status == 200
        await client.skip(size)
        await until(lambda: served.outcomes == [200])


def answering_at_once(body: bytes) -> asgi.Application:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"Content-Length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return application


async def test_reading_a_body_ends_when_the_client_hangs_up() -> None:
    outcome: list[type[Exception]] = []

    def handle(exchange: Exchange) -> None:
        async def read() -> None:
            try:
                await read_body(exchange, 100)
            except ClientGone as error:
                outcome.append(type(error))

        tasks.append(asyncio.get_running_loop().create_task(read()))

    tasks: list[asyncio.Task[None]] = []
    async with listening(handle) as listener, connected(listener.port) as client:
        client.send(get("/", "Content-Length: 10", method="POST") + b"half")
        await until(lambda: bool(tasks))
        client.reset()
        await tasks[0]
        assert outcome == [ClientGone]
