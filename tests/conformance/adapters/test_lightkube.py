"""The adapter for lightkube: the contract on the client inside it, and what a user of lightkube calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager

import httpx2
import lightkube
import pytest
import trustme
from lightkube.resources.core_v1 import Pod

from ostiary.client.adapters.lightkube import async_client, client
from ostiary.client.connection import Connection
from ostiary.errors import ConfigurationError, CredentialError
from tests.conformance.adapters.contract import AdapterContract, AsyncDriver, Driver, Reply, event
from tests.conformance.adapters.exec_server import exec_server
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript

NO_LIMIT = httpx2.Timeout(None)


class LightkubeDriver(Driver):
    refusal = httpx2.ConnectError
    unreachable = httpx2.ConnectError
    follows_redirects = False

    def __init__(self, connection: Connection) -> None:
        self.client = client(connection, timeout=NO_LIMIT)
        self.inner: httpx2.Client = self.client._client._client

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        response = self.inner.get(path, headers=headers)
        return Reply(response.status_code, response.content)

    def post(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        response = self.inner.post(path, content=body)
        return Reply(response.status_code, response.content)

    @contextmanager
    def watch(self, path: str) -> Iterator[Iterator[bytes]]:
        with self.inner.stream("GET", path) as response:
            yield (line.encode() for line in response.iter_lines())

    def close(self) -> None:
        self.client.close()

    def shown(self) -> Iterable[object]:
        return [self.client, self.client.config, vars(self.client._client), vars(self.inner)]


class AsyncLightkubeDriver(AsyncDriver):
    refusal = httpx2.ConnectError
    unreachable = httpx2.ConnectError
    follows_redirects = False

    async def open(self, connection: Connection) -> None:
        self.client = async_client(connection, timeout=NO_LIMIT)
        self.inner: httpx2.AsyncClient = self.client._client._client

    async def get_async(self, path: str, headers: Mapping[str, str] | None) -> Reply:
        response = await self.inner.get(path, headers=headers)
        return Reply(response.status_code, response.content)

    async def post_async(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        response = await self.inner.post(path, content=body if isinstance(body, bytes) else _later(body))
        return Reply(response.status_code, response.content)

    @asynccontextmanager
    async def watch_async(self, path: str) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
        async with self.inner.stream("GET", path) as response:
            lines = response.aiter_lines()

            async def next_line() -> bytes:
                return (await anext(lines)).encode()

            yield next_line

    async def close_async(self) -> None:
        await self.client.close()

    def shown(self) -> Iterable[object]:
        return [self.client, self.client.config, vars(self.client._client), vars(self.inner)]


async def _later(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class TestLightkube(AdapterContract):
    open_driver = LightkubeDriver


class TestLightkubeInAsyncio(AdapterContract):
    open_driver = AsyncLightkubeDriver


@pytest.fixture
def kube(connect_to: Connect) -> Iterator[lightkube.Client]:
    with closing(client(connect_to(), timeout=NO_LIMIT)) as made:
        yield made


def test_a_plugin_of_v1_which_lightkube_itself_refuses_signs_in(
    kube: lightkube.Client, api: ApiServer, plugin: PluginScript
) -> None:
    api.rules.tokens = {"token-1"}
    assert [pod.metadata.name for pod in kube.list(Pod) if pod.metadata] == [f"pod-{n}" for n in range(5)]
    api.rules.tokens = {"token-2"}
    plugin.answer(token="token-2")
    assert len(list(kube.list(Pod, namespace="*"))) == 5
    assert plugin.runs == 2


def test_events_of_a_watch_are_objects_of_lightkube(kube: lightkube.Client, api: ApiServer) -> None:
    events = kube.watch(Pod)
    with ThreadPoolExecutor(1) as thread:
        for name in ("a", "b"):
            coming = thread.submit(next, events)
            api.wait_for_watches(1)
            api.emit(event(name))
            kind, pod = coming.result(30)
            assert pod.metadata is not None
            assert (kind, pod.metadata.name) == ("ADDED", name)


def test_the_default_namespace_is_that_of_the_context(kube: lightkube.Client, api: ApiServer) -> None:
    assert kube.namespace == "default"
    list(kube.list(Pod))
    assert api.requests[0].target.startswith("/api/v1/namespaces/default/pods")


def test_a_refusal_of_the_server_is_lightkubes_own_error(kube: lightkube.Client, api: ApiServer) -> None:
    with pytest.raises(lightkube.ApiError) as caught:
        kube.get(Pod, "forbidden")
    assert caught.value.status.code == 403
    assert api.statuses == [403]


def test_a_plugin_that_fails_is_our_error_and_not_lightkubes(kube: lightkube.Client, plugin: PluginScript) -> None:
    plugin.exit(1)
    with pytest.raises(CredentialError):
        list(kube.list(Pod))
    with pytest.raises(CredentialError):
        next(kube.watch(Pod))


@pytest.mark.parametrize("name", ["config", "proxy", "transport"])
def test_an_option_that_would_lead_around_the_connection_is_refused(connect_to: Connect, name: str) -> None:
    for make in (client, async_client):
        with pytest.raises(ConfigurationError, match="options of the lightkube client") as caught:
            make(connect_to(), **{name: None})
        assert name in str(caught.value.cause)


def test_other_options_are_lightkubes(connect_to: Connect, api: ApiServer) -> None:
    with closing(client(connect_to(), namespace="kube-system", field_manager="me", http2=True)) as kube:
        list(kube.list(Pod))
    assert api.requests[0].target == "/api/v1/namespaces/kube-system/pods"


async def test_the_async_client_lists_too(connect_to: Connect, api: ApiServer, plugin: PluginScript) -> None:
    api.rules.tokens = {"token-1"}
    async with aclosing_of(async_client(connect_to())) as kube:
        assert len([pod async for pod in kube.list(Pod)]) == 5
    assert plugin.runs == 1


async def test_a_command_in_a_pod_runs_over_a_websocket_that_is_signed_and_refreshed(
    connect_to: Connect, ca: trustme.CA, plugin: PluginScript
) -> None:
    async with (
        exec_server(ca, tokens={"token-1"}) as server,
        aclosing_of(async_client(connect_to(server=server.url))) as kube,
    ):
        assert (await kube.exec("web", command=["hostname"], stdout=True)).stdout == "hostname"
        server.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert (await kube.exec("web", command=["date"], stdout=True)).stdout == "date"
        assert server.statuses == [101, 401, 101]


@asynccontextmanager
async def aclosing_of(kube: lightkube.AsyncClient) -> AsyncIterator[lightkube.AsyncClient]:
    try:
        yield kube
    finally:
        await kube.close()
