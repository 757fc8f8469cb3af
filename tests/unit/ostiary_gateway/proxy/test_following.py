"""An upstream that is followed: whole answers, and lines as they come; bounded in size and in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.proxy import following as reading
from ostiary_gateway.proxy.following import FollowedUpstream
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import Script, Upstreamed, upstream
from tests.support.http1 import Upstream as Server
from tests.unit.ostiary_gateway.proxy.gateways import at, configured, silent

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
WATCH = "/apis/rbac.authorization.k8s.io/v1/roles?watch=true"


@asynccontextmanager
async def followed(
    folder: Path, script: Script, *, seconds: float = 30.0, identity: str = "impersonation"
) -> AsyncIterator[tuple[FollowedUpstream, Server]]:
    async with upstream(script) as made:
        (folder / "token").write_text("secret")
        settings = {"name": "api", "server": at(made), "attributes": "kubernetes", "identity": identity}
        config = configured(folder, at(made), upstreams=[{**settings, "tokenFile": "token"}])
        place = FollowedUpstream(config.upstreams[0], asyncio.get_running_loop(), FakeClock(), seconds=seconds)
        try:
            yield place, made
        finally:
            place.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def lines_of(place: FollowedUpstream, *, longest: int = 1000, silence: float = 30.0) -> list[bytes]:
    async with place.read_lines(WATCH, longest=longest, silence=silence) as lines:
        assert lines.answer is None
        return [line async for batch in lines.batches() for line in batch]


async def test_lines_come_whole_however_they_are_cut(tmp_path: Path) -> None:
    async def script(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.request())
        connection.send(HEAD + chunk(b'{"a":1}\n{"b"'))
        await connection.writer.drain()
        connection.send(chunk(b":2}\n\n") + chunk(b'{"c":3}\n{"no end'))
        connection.send(b"0\r\n\r\n")
        await connection.rest()

    async with followed(tmp_path, script) as (place, made):
        assert await lines_of(place) == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
        (request,) = made.requests
        assert request.one("Authorization") == b"Bearer secret"
        assert request.one("Accept") == b"application/json"
        assert request.one("Impersonate-User") is None


async def test_a_refusal_comes_whole(tmp_path: Path) -> None:
    async def script(connection: Upstreamed) -> None:
        await connection.request()
        connection.send(b'HTTP/1.1 410 Gone\r\nContent-Length: 12\r\n\r\n{"code":410}')
        await connection.rest()

    async with followed(tmp_path, script) as (place, _), place.read_lines(WATCH, longest=10, silence=30) as lines:
        assert lines.answer is not None
        assert (lines.answer.status, lines.answer.body) == (410, b'{"code":410}')


async def endless_line(connection: Upstreamed) -> None:
    await connection.request()
    connection.send(HEAD)
    for _ in range(100):
        connection.send(chunk(b"a" * 500))
        await connection.writer.drain()
    await connection.rest()


async def cut_off(connection: Upstreamed) -> None:
    await connection.request()
    connection.send(HEAD + chunk(b"half a li"))
    await connection.writer.drain()


async def nothing_more(connection: Upstreamed) -> None:
    await connection.request()
    connection.send(HEAD)
    await connection.rest()


async def switched(connection: Upstreamed) -> None:
    await connection.request()
    connection.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
    await connection.rest()


async def large_refusal(connection: Upstreamed) -> None:
    await connection.request()
    connection.send(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(10):
        connection.send(chunk(b"a" * 20_000))
        await connection.writer.drain()
    await connection.rest()


async def test_what_cannot_go_on_ends_with_its_cause(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        (endless_line, "a line that is too long"),
        (cut_off, "it closed the connection"),
        (nothing_more, "nothing came for 0.05 seconds"),
        (silent, "did not answer in time"),
        (switched, "switched protocols"),
        (large_refusal, "too large"),
    ]
    for script, cause in cases:
        with subtests.test(script=script, cause=cause):
            tmp_path = tmp_path_factory.mktemp("case")
            seconds, silence = (0.3 if script is silent else 30.0), (0.05 if script is nothing_more else 30.0)
            async with followed(tmp_path, script, seconds=seconds) as (place, _):
                with pytest.raises(ProviderError) as raised:
                    await lines_of(place, silence=silence)
                assert cause in str(raised.value.cause)


async def test_an_upstream_that_is_faster_than_its_reader_must_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not taken yet is bounded, and nothing of it is lost."""
    monkeypatch.setattr(reading, "MOST_WAITING", 10_000)
    sent = 0

    async def script(connection: Upstreamed) -> None:
        nonlocal sent
        await connection.request()
        connection.send(HEAD)
        for number in range(2000):
            connection.send(chunk(b"%05d %s\n" % (number, b"a" * 4000)))
            sent += 1
            await connection.writer.drain()
        connection.send(b"0\r\n\r\n")
        await connection.rest()

    async with (
        followed(tmp_path, script) as (place, _),
        place.read_lines(WATCH, longest=10_000, silence=30) as lines,
    ):
        for _ in range(500):
            await asyncio.sleep(0)
        # Much less than the eight megabytes that there are: what the sockets hold comes besides.
        assert sent < 2000
        numbers = [int(line[:5]) async for batch in lines.batches() for line in batch]
    assert numbers == list(range(2000))


async def test_a_rejected_credential_is_read_again(tmp_path: Path) -> None:
    async def script(connection: Upstreamed) -> None:
        while True:
            request = await connection.request()
            is_new = request.one("Authorization") == b"Bearer new"
            connection.send(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n{}" % (200 if is_new else 401))

    async with followed(tmp_path, script) as (place, _):
        assert (await place.get("/x", largest=100)).status == 401
        (tmp_path / "token").write_text("new")
        assert (await place.get("/x", largest=100)).status == 401
        assert (await place.get("/x", largest=100)).status == 200


async def test_a_credential_that_cannot_be_read_is_no_question(tmp_path: Path) -> None:
    async with followed(tmp_path, silent) as (place, made):
        (tmp_path / "token").unlink()
        with pytest.raises(ProviderError) as raised:
            await lines_of(place)
        assert "credential cannot be read" in str(raised.value.cause)
        assert made.requests == []
