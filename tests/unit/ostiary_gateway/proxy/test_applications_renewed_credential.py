"""A rejected credential of ours may be renewed at once or later; the request goes out once more either way."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.http1 import Upstreamed, get, until
from tests.support.proxied import HI, Between, between

OLD, NEW = b"Authorization: Bearer old\r\n", b"Authorization: Bearer new\r\n"
REJECTED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"


async def knows_the_new_one(connection: Upstreamed) -> None:
    while True:
        request = await connection.request()
        connection.upstream.requests.append(request)
        connection.send(HI if request.one("Authorization") == b"Bearer new" else REJECTED)


def later() -> asyncio.Future[bytes | None]:
    return asyncio.get_running_loop().create_future()


async def rejected_once(b: Between) -> None:
    await until(lambda: len(b.upstream.requests) == 1)


@pytest.mark.parametrize("body", [b"", b"x" * 1000])
async def test_a_credential_that_comes_later_is_waited_for(body: bytes) -> None:
    async with between(knows_the_new_one) as b:
        b.gate.credential, b.gate.renewal = OLD, (renewal := later())
        b.client.send(get("/pods", method="POST" if body else "GET", body=body))
        await rejected_once(b)
        renewal.set_result(NEW)
        answer = await b.client.answer()
        assert answer.status == 200
        assert [request.body for request in b.upstream.requests] == [body, body]
        assert [request.all("Authorization") for request in b.upstream.requests] == [[b"Bearer old"], [b"Bearer new"]]


async def test_without_another_one_it_fails_once() -> None:
    async with between(knows_the_new_one) as b:
        b.gate.credential, b.gate.renewal = OLD, (renewal := later())
        b.client.send(get())
        await rejected_once(b)
        renewal.set_result(None)
        assert (await b.client.answer()).status == 503
        assert b.gate.statuses == [503]


async def test_one_that_is_rejected_again_is_the_last() -> None:
    async with between(knows_the_new_one) as b:
        b.gate.credential, b.gate.renewal = OLD, b"Authorization: Bearer other\r\n"
        assert (await b.client.ask(get())).status == 503
        assert len(b.upstream.requests) == 2


async def test_a_client_that_left_meanwhile_gets_nothing_sent() -> None:
    async with between(knows_the_new_one) as b:
        b.gate.credential, b.gate.renewal = OLD, (renewal := later())
        b.client.send(get())
        await rejected_once(b)
        await b.client.close()
        await until(lambda: b.gate.finished != [])
        renewal.set_result(NEW)
        await asyncio.sleep(0)
        assert len(b.upstream.requests) == 1
        assert len(b.gate.finished) == 1
        assert b.gate.failed == []
