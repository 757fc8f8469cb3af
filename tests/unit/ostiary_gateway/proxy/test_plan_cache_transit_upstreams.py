"""A request in transit, and whatever its upstream does: as without shortcuts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.http1 import Client, connected, turn, until
from tests.unit.ostiary_gateway.proxy.gateways import (
    ImmediatePolicy,
    NamelessPolicy,
    kubernetes,
)
from tests.unit.ostiary_gateway.proxy.transit_scene import (
    OK,
    PODS,
    UNTIL_KNOWN,
    scene,
)

# --- what upstreams answer ---

ANSWERS = {
    "in parts": [b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 4\r\n\r\n", b"ab", b"cd"],
    "head and body apart": [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"abcd"],
    "chunked": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"],
    "chunked in parts": [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"2\r\ncd\r\n",
        b"0\r\nX-Trailer: a\r\n\r\n",
    ],
    "interim": [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", OK],
    "interim at once": [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK],
    "continue": [b"HTTP/1.1 100 Continue\r\n\r\n" + OK],
    "switched": [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"],
    "no content": [b"HTTP/1.1 204 No Content\r\n\r\n"],
    "not modified": [b"HTTP/1.1 304 Not Modified\r\nETag: a\r\n\r\n"],
    "until close": [b"HTTP/1.1 200 OK\r\n\r\nabcd", b""],
    "close": [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"],
    "more than the answer": [OK + b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"],
    "empty lines after it": [OK + b"\r\n\r\n"],
    "not HTTP": [b"SSH-2.0-x\r\n\r\n"],
    "cut off": [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", b""],
    "unauthorized": [b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno"],
    "redirect": [b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n"],
    "forbidden": [b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"],
    "error": [b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 3\r\n\r\nbad"],
    "events": [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: a\n\n", b""],
    "nothing": [b""],
}


async def read_to_the_end(client: Client) -> bytes:
    """All that comes, or that it was reset."""
    data = b""
    try:
        while more := await client.reader.read(65536):
            data += more
    except ConnectionError:
        # What came before it may be lost with it.
        return b"<reset>"
    return data


async def outcome(folder: Path, answer: list[bytes], method: str, *, shortcuts: bool) -> tuple[object, ...]:
    """What the client, the upstream and the records see when a known request gets *answer*."""
    folder.mkdir()
    (folder / "token").write_text("ours")
    upstreams = [{**kubernetes("")[0], "tokenFile": "token"}]
    async with scene(folder, NamelessPolicy(), upstreams=upstreams, shortcuts=shortcuts) as it:
        data = it.gateway.request(f"{PODS}/web-1", method=method)
        for _ in range(UNTIL_KNOWN):
            assert (await it.client.ask(data, method)).status == 200
        it.answering.holds = True
        it.client.send(data)
        await until(lambda: bool(it.answering.waiting))
        assert len(it.under_way) == (1 if shortcuts else 0)
        remote = it.remote
        it.answering.holds = False
        for part in answer:
            if part:
                remote.send(part)
                await until(lambda: not remote.writer.transport.get_write_buffer_size())
                await turn(30)
            else:
                remote.writer.close()
        await until(lambda: not it.engine.busy)
        # What follows shows whether the connection is still good.
        it.client.send(it.gateway.request("/api", "Connection: close"))
        received = await read_to_the_end(it.client)
        it.is_over()
        events = [
            (event["stage"], event.get("responseStatus"), event["requestURI"]) for event in await it.gateway.events()
        ]
        received = re.sub(rb'(?i)(audit-id: |request id |"requestID":")[0-9a-f-]{36}', rb"\1", received)
        requests = [request.start for request in it.made.requests]
        counts = [it.gateway.count("requests_total", code) for code in ("0", "200", "401", "403", "500", "502", "503")]
        # Of a 401 that did not come whole, the connection is not used again.
        connections = 0 if b" 401 " in answer[0] else len(it.made.connections)
        return received, requests, connections, events, counts


async def test_whatever_the_upstream_answers_it_is_as_without_shortcuts(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for method in ["GET", "DELETE"]:
        for kind in list(ANSWERS):
            with subtests.test(method=method, kind=kind):
                tmp_path = tmp_path_factory.mktemp("case")
                with_shortcuts = await outcome(tmp_path / "with", ANSWERS[kind], method, shortcuts=True)
                without = await outcome(tmp_path / "without", ANSWERS[kind], method, shortcuts=False)
                assert with_shortcuts == without


async def test_a_pooled_connection_that_was_lost_is_replaced_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.begin()
        first = it.remote
        first.reset()
        await until(lambda: it.remote is not first)
        assert it.gateway.seats == 1
        it.remote.reset()
        assert (await it.client.answer()).status == 503
        it.is_over()
        assert len(it.made.requests) == UNTIL_KNOWN + 2
        assert await it.codes() == [*([200] * UNTIL_KNOWN), 503]


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
async def test_what_may_have_been_done_is_not_sent_a_second_time(tmp_path: Path, method: str) -> None:
    async with scene(tmp_path) as it:
        await it.begin(method=method)
        it.remote.reset()
        assert (await it.client.answer()).status == 503
        assert len(it.made.requests) == UNTIL_KNOWN + 1
        it.is_over()


async def test_an_upstream_that_does_not_answer_in_time_is_given_up(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.begin()
        (served,) = it.gateway.worker.app.routes.upstreams
        now = asyncio.get_running_loop().time()
        served.pool.tick(now + served.response_timeout - 5)
        assert len(it.under_way) == 1
        served.pool.tick(now + served.response_timeout + 5)
        assert (await it.client.answer()).status == 504
        it.is_over()
        assert await it.codes() == [*([200] * UNTIL_KNOWN), 504]


async def test_an_upstream_that_rejects_our_credential_gets_a_newer_one(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    upstreams = [{**kubernetes("")[0], "tokenFile": "token"}]
    async with scene(tmp_path, ImmediatePolicy(), upstreams=upstreams) as it:
        await it.begin(f"{PODS}/web-1")
        (tmp_path / "token").write_text("new")
        first = it.remote
        it.answering.holds = False
        first.send(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
        assert (await it.client.answer()).status == 200
        assert [request.one("Authorization") for request in it.made.requests[-2:]] == [b"Bearer old", b"Bearer new"]
        it.is_over()


async def test_a_credential_that_cannot_be_read_is_answered_as_before(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("ours")
    upstreams = [{**kubernetes("")[0], "tokenFile": "token"}]
    async with scene(tmp_path, ImmediatePolicy(), upstreams=upstreams) as it:
        await it.begin(f"{PODS}/web-1")
        await it.answer()
        (tmp_path / "token").unlink()
        (served,) = it.gateway.worker.app.routes.upstreams
        assert served._token is not None
        served._token.expire()
        assert (await it.gateway.ask(f"{PODS}/web-1")).status == 503
        it.is_over()
        assert it.gateway.count("upstream_errors_total", "credential") == 1
        (tmp_path / "token").write_text("ours")
        await it.begin(f"{PODS}/web-1")
        assert (await it.answer()).status == 200


async def test_an_answer_ends_the_doubts_about_an_upstream(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.begin(method="POST")
        it.remote.reset()
        assert (await it.client.answer()).status == 503
        (served,) = it.gateway.worker.app.routes.upstreams
        assert served.failures == 1
        it.answering.holds = False
        # On another connection, which is idle then.
        async with connected(it.gateway.port) as other:
            it.answering.holds = True
            other.send(it.gateway.request("/other"))
            await until(lambda: len(it.answering.waiting) > 1)
            served.failures = 0
            it.remote.send(OK)
            assert (await other.answer()).status == 200
        served.failures = 3
        await it.send(it.gateway.request(method="POST"))
        assert (await it.answer()).status == 200
        assert served.failures == 0
