"""The adapter for kr8s: the contract on its `Api`, and what a user of kr8s calls."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from ssl import SSLSocket
from typing import Any

import httpx
import kr8s
import kr8s.asyncio
import pytest
import trio
import trustme
from kr8s.asyncio.objects import Pod
from kr8s.objects import Pod as SyncPod

from ostiary.client.adapters.kr8s import api as kr8s_api
from ostiary.client.adapters.kr8s import sync_api
from ostiary.client.connection import Connection
from ostiary.errors import CredentialError
from tests.conformance.adapters.contract import AdapterContract, AsyncDriver, Reply
from tests.conformance.adapters.exec_server import PROTOCOL, STDOUT, exec_server
from tests.conformance.adapters.raw_server import RawServer, read_head
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig
from tests.support.proxy import ConnectProxy


def _parts(path: str) -> dict[str, Any]:
    """*path* as kr8s takes it apart."""
    base, _, url = path.rpartition("/")
    return {"version": "", "base": base, "url": url}


class Kr8sDriver(AsyncDriver):
    refusal = httpx.ConnectError
    unreachable = httpx.ConnectError

    async def open(self, connection: Connection) -> None:
        self.api = await kr8s_api(connection)

    async def get_async(self, path: str, headers: Mapping[str, str] | None) -> Reply:
        path, _, query = path.partition("?")
        options = {"params": httpx.QueryParams(query), "headers": headers}
        async with self.api.call_api("GET", **_parts(path), raise_for_status=False, **options) as response:
            return Reply(response.status_code, response.content)

    async def post_async(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        content = body if isinstance(body, bytes) else _later(body)
        async with self.api.call_api("POST", **_parts(path), raise_for_status=False, content=content) as response:
            return Reply(response.status_code, response.content)

    @asynccontextmanager
    async def watch_async(self, path: str) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
        async with self.api.call_api("GET", **_parts(path), stream=True) as response:
            lines = response.aiter_lines()

            async def next_line() -> bytes:
                return (await anext(lines)).encode()

            yield next_line

    async def close_async(self) -> None:
        await self.api.aclose()

    def shown(self) -> Iterable[object]:
        return [self.api, vars(self.api), self.api.auth, vars(self.api.auth), vars(self.api._session)]


async def _later(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class TestKr8s(AdapterContract):
    open_driver = Kr8sDriver


async def test_pods_are_listed_as_objects_of_kr8s(connect_to: Connect, api: ApiServer, plugin: PluginScript) -> None:
    api.rules.tokens = {"token-1"}
    async with await kr8s_api(connect_to()) as kube:
        assert kube.namespace == "default"
        assert [pod["metadata"]["name"] async for pod in Pod.list(api=kube)] == [f"pod-{n}" for n in range(5)]
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert len([pod async for pod in Pod.list(api=kube)]) == 5
    assert api.statuses == [200, 401, 200]
    assert plugin.runs == 2


def test_kr8s_works_under_trio(connect_to: Connect, api: ApiServer) -> None:
    async def names() -> list[Any]:
        async with await kr8s_api(connect_to()) as kube:
            return [pod["metadata"]["name"] async for pod in Pod.list(api=kube)]

    assert len(trio.run(names)) == 5
    assert api.requests[0].headers.get("Authorization") == "Bearer token-1"


async def test_a_403_is_asked_for_once_and_is_kr8ss_own_error(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    async with await kr8s_api(connect_to()) as kube:
        for stream in (False, True):
            with pytest.raises(kr8s.ServerError, match="Forbidden") as caught:
                async with kube.call_api("GET", url="forbidden", stream=stream):
                    pass
            assert caught.value.response is not None
            assert caught.value.response.status_code == 403
            assert caught.value.status["reason"] == "Forbidden"  # type: ignore[index]
    assert api.statuses == [403, 403]
    assert plugin.runs == 1


async def test_an_error_that_is_no_status_object_is_told_by_its_number(connect_to: Connect, ca: trustme.CA) -> None:
    def serve(connection: SSLSocket) -> None:
        while read_head(connection):
            connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops")

    with RawServer(ca, serve) as server:
        async with await kr8s_api(connect_to(server=server.url)) as kube:
            with pytest.raises(kr8s.ServerError, match="502 Bad Gateway") as caught:
                await kube.version()
    assert caught.value.status == "oops"


async def test_a_plugin_that_fails_is_our_error_and_not_kr8ss(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    plugin.exit(1)
    async with await kr8s_api(connect_to()) as kube:
        with pytest.raises(CredentialError):
            await kube.version()
    assert api.requests == []


async def test_kr8s_reads_no_kubeconfig_and_runs_no_plugin_of_its_own(
    connect_to: Connect, api: ApiServer, plugin: PluginScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PluginScript(tmp_path / "other").answer(token="of-kr8s")
    kubeconfig = write_kubeconfig(tmp_path / "other-config", server=api.url, user=exec_user(other.path))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    async with await kr8s_api(connect_to()) as kube:
        await kube.reauthenticate()
        await kube.version()
        await kube.reauthenticate()
        await kube.version()
    assert [request.headers.get("Authorization") for request in api.requests] == ["Bearer token-1"] * 2
    assert other.runs == 0


async def test_a_closed_api_opens_again_signed(connect_to: Connect, api: ApiServer) -> None:
    kube = await kr8s_api(connect_to(), headers={"X-Mine": "yes"})
    for _ in range(2):
        await kube.version()
        await kube.aclose()
    assert [request.headers.get("Authorization") for request in api.requests] == ["Bearer token-1"] * 2
    assert [request.headers.get("X-Mine") for request in api.requests] == ["yes"] * 2


async def test_a_time_limit_is_kr8ss_own_error(connect_to: Connect, api: ApiServer) -> None:
    api.barrier = threading.Barrier(2)
    async with await kr8s_api(connect_to(), timeout=0.05) as kube:
        assert kube.timeout == 0.05
        with pytest.raises(kr8s.APITimeoutError):
            await kube.version()
    api.barrier.abort()


async def test_a_websocket_is_signed_and_refreshed_like_any_request(
    connect_to: Connect, ca: trustme.CA, plugin: PluginScript
) -> None:
    async def output(kube: kr8s.asyncio.Api, command: str) -> bytes:
        options: Any = {"params": {"command": command}, "subprotocols": [PROTOCOL]}
        async with kube.open_websocket(namespace="default", url="pods/web/exec", **options) as socket:
            return await socket.receive_bytes(timeout=None)

    async with exec_server(ca, tokens={"token-1"}) as server, await kr8s_api(connect_to(server=server.url)) as kube:
        assert await output(kube, "hostname") == STDOUT + b"hostname"
        server.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert await output(kube, "date") == STDOUT + b"date"
        assert server.statuses == [101, 401, 101]


def test_the_sync_api_is_signed_in_too(connect_to: Connect, api: ApiServer, plugin: PluginScript) -> None:
    api.rules.tokens = {"token-1"}
    with ConnectProxy().running() as proxy:
        with sync_api(connect_to(cluster={"proxy-url": proxy.url})) as kube:
            assert isinstance(kube, kr8s.Api)
            assert [pod["metadata"]["name"] for pod in SyncPod.list(api=kube)] == [f"pod-{n}" for n in range(5)]
            api.rules.tokens = {"token-2"}
            plugin.answer(token="token-2")
            assert kube.version()["kind"] == "Echo"
        assert "dev" in repr(kube)
        proxy.tunnels[0].wait_until_left()
    assert api.statuses == [200, 401, 200]
    assert plugin.runs == 2
