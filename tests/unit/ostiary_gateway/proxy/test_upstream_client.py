"""Questions of the gateway's own: answered whole, or an error; never half an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.proxy import upstream_client as own_requests
from ostiary_gateway.proxy.upstream_client import UpstreamClient
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import Script, Upstreamed, upstream
from tests.support.http1 import Upstream as Server
from tests.unit.ostiary_gateway.proxy.gateways import at, configured, silent

SEEN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def asking(
    folder: Path, script: Script, *, seconds: float = 30.0
) -> AsyncIterator[tuple[UpstreamClient, Server]]:
    async with upstream(script) as made:
        (folder / "token").write_text("secret")
        settings = {"name": "api", "server": at(made), "attributes": "kubernetes", "identity": "impersonation"}
        config = configured(folder, at(made), upstreams=[{**settings, "tokenFile": "token"}])
        place = Upstream(config.upstreams[0], asyncio.get_running_loop(), FakeClock())
        try:
            yield UpstreamClient({"api": place}, seconds=seconds), made
        finally:
            place.pool.close()


async def whole(connection: Upstreamed) -> None:
    while True:
        connection.upstream.requests.append(await connection.request())
        connection.send(SEEN + b"Content-Length: 2\r\n\r\n{}")


async def in_pieces(connection: Upstreamed) -> None:
    connection.upstream.requests.append(await connection.request())
    connection.send(SEEN + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
    await connection.writer.drain()
    connection.send(b"1\r\n}\r\n0\r\n\r\n")
    await connection.rest()


@pytest.mark.parametrize("script", [whole, in_pieces])
async def test_the_answer_comes_whole(tmp_path: Path, script: Script) -> None:
    async with asking(tmp_path, script) as (api, made):
        answer = await api.ask("api", "/api/v1/pods", headers=[("Accept", "application/json")])
        assert (answer.status, answer.content_type, answer.body) == (200, "application/json", b"{}")
        (request,) = made.requests
        assert request.one("Authorization") == b"Bearer secret"
        assert request.one("Impersonate-User") is None
        assert api.upstreams == ("api",)


async def test_a_question_in_the_name_of_a_user_impersonates_them(tmp_path: Path) -> None:
    async with asking(tmp_path, whole) as (api, made):
        user = UserInfo("alice", groups=("dev",))
        await api.ask("api", "/x?dryRun=All", method="POST", body=b"{}", user=user)
        (request,) = made.requests
        assert (request.one("Impersonate-User"), request.one("Impersonate-Group")) == (b"alice", b"dev")
        assert (request.one("Content-Length"), request.body) == (b"2", b"{}")


async def dying_once(connection: Upstreamed) -> None:
    connection.upstream.requests.append(await connection.request())
    if connection.number == 0:
        connection.send(SEEN + b"Content-Length: 2\r\n\r\n{}")
        await connection.request()
        return
    connection.send(SEEN + b"Content-Length: 2\r\n\r\n{}")
    await connection.rest()


async def test_a_connection_that_died_while_it_was_idle_costs_nothing(tmp_path: Path) -> None:
    async with asking(tmp_path, dying_once) as (api, _):
        for _ in range(2):
            assert (await api.ask("api", "/x")).status == 200


async def endless(connection: Upstreamed) -> None:
    await connection.request()
    connection.send(SEEN + b"Transfer-Encoding: chunked\r\n\r\n")
    while not connection.writer.is_closing():
        connection.send(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
        await connection.writer.drain()


async def cut_short(connection: Upstreamed) -> None:
    await connection.request()
    connection.send(SEEN + b"Content-Length: 9\r\n\r\n{}")
    await connection.writer.drain()


@pytest.mark.parametrize(("script", "cause"), [(endless, "too large"), (cut_short, ""), (silent, "in time")])
async def test_what_is_no_whole_answer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Script, cause: str
) -> None:
    monkeypatch.setattr(own_requests, "LARGEST_ANSWER", 100_000)
    async with asking(tmp_path, script, seconds=0.3 if script is silent else 30.0) as (api, _):
        with pytest.raises(ProviderError) as raised:
            await api.ask("api", "/x")
        assert cause in str(raised.value.cause)


async def test_an_answer_may_be_exactly_as_large_as_was_allowed(tmp_path: Path) -> None:
    async with asking(tmp_path, in_pieces) as (api, _):
        assert (await api.ask_place(api._upstreams["api"], "/x", largest=2)).body == b"{}"


async def test_an_answer_with_a_byte_more_is_an_error(tmp_path: Path) -> None:
    async with asking(tmp_path, in_pieces) as (api, _):
        with pytest.raises(ProviderError) as raised:
            await api.ask_place(api._upstreams["api"], "/x", largest=1)
        assert "too large" in str(raised.value.cause)


async def test_an_unknown_upstream_and_a_lost_credential_are_errors(tmp_path: Path) -> None:
    async with asking(tmp_path, whole) as (api, made):
        with pytest.raises(ProviderError):
            await api.ask("other", "/x")
        (tmp_path / "token").unlink()
        with pytest.raises(ProviderError) as raised:
            await api.ask("api", "/x")
        assert "credential" in str(raised.value.cause)
        assert made.requests == []
