"""The adapter for kubernetes.aio and kubernetes_asyncio: the contract, their watches, and exec."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import aiohttp
import aiohttp_retry
import pytest
import trustme

from ostiary.client.adapters.kubernetes_asyncio import LIBRARIES, api_client, ws_api_client
from ostiary.client.connection import Connection
from ostiary.errors import ConfigurationError, PluginFailed, TransportError
from tests.conformance.adapters.contract import AdapterContract, AsyncDriver, Reply, event
from tests.conformance.adapters.exec_server import STDOUT, exec_server
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript


class KubernetesAioDriver(AsyncDriver):
    """Asks through the layer on which all of the library's calls stand."""

    library = "kubernetes.aio"
    refusal = aiohttp.ClientConnectorCertificateError
    unreachable = aiohttp.ClientConnectorError
    sends_generators = False
    reads_trust_late = False

    async def open(self, connection: Connection) -> None:
        self.client = api_client(connection, library=self.library)
        self._server = connection.server

    async def request(self, method: str, path: str, **options: Any) -> aiohttp.ClientResponse:
        answer = await self.client.rest_client.request(method, self._server + path, **options)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def get_async(self, path: str, headers: Mapping[str, str] | None) -> Reply:
        async with await self.request("GET", path, headers=dict(headers or {})) as response:
            return Reply(response.status, await response.read())

    async def post_async(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        headers = {"Content-Type": "application/octet-stream"}
        async with await self.request("POST", path, headers=headers, body=body) as response:
            return Reply(response.status, await response.read())

    @asynccontextmanager
    async def watch_async(self, path: str) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
        async with await self.request("GET", path) as response:
            yield aiter(response.content).__anext__

    async def close_async(self) -> None:
        await self.client.close()

    def shown(self) -> Iterable[object]:
        configuration = self.client.configuration
        session = self.client.rest_client.pool_manager
        return [self.client, vars(self.client), configuration, vars(configuration), session, vars(session)]


class KubernetesAsyncioDriver(KubernetesAioDriver):
    library = "kubernetes_asyncio"

    async def request(self, method: str, path: str, **options: Any) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self.client.rest_client.request(
            method, self._server + path, _preload_content=False, **options
        )
        return response


class TestKubernetesAio(AdapterContract):
    open_driver = KubernetesAioDriver


class TestKubernetesAsyncio(AdapterContract):
    open_driver = KubernetesAsyncioDriver


# --- through the calls that people make ---


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def core(library: str, client: Any) -> Any:
    return import_module(f"{library}.client").CoreV1Api(client)


async def test_a_call_gives_the_objects_of_the_library(
    library: str, connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    api.rules.tokens = {"token-1"}
    async with api_client(connect_to(), library=library) as client:
        pods = await core(library, client).list_namespaced_pod("default")
    assert [pod.metadata.name for pod in pods.items] == [f"pod-{number}" for number in range(5)]
    assert plugin.runs == 1


async def test_an_object_is_sent_again_after_a_401(
    library: str, connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    models = import_module(f"{library}.client")
    async with api_client(connect_to(), library=library) as client:
        await core(library, client).list_namespaced_pod("default")
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        await core(library, client).create_namespace(models.V1Namespace(metadata=models.V1ObjectMeta(name="made")))
    assert api.statuses == [200, 401, 200]
    assert api.requests[1].body == api.requests[2].body
    assert b'"made"' in api.requests[2].body


async def test_a_plugin_that_fails_is_the_callers_error_and_not_the_librarys(
    library: str, connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    plugin.exit(4)
    async with api_client(connect_to(), library=library) as client:
        with pytest.raises(PluginFailed):
            await core(library, client).list_namespaced_pod("default")
    assert api.requests == []


async def test_the_programs_default_configuration_is_neither_used_nor_changed(
    library: str, connect_to: Connect, api: ApiServer
) -> None:
    configurations = import_module(f"{library}.client").Configuration
    default = configurations()
    default.host, default.api_key = "https://elsewhere.test", {"BearerToken": "Bearer somebody-else"}
    default.proxy = "http://elsewhere.test:3128"
    configurations.set_default(default)
    try:
        async with api_client(connect_to(), library=library) as client:
            await core(library, client).list_namespaced_pod("default")
        assert configurations.get_default_copy().host == "https://elsewhere.test"
    finally:
        configurations.set_default(None)
    assert api.requests[0].headers.get_list("Authorization") == ["Bearer token-1"]


async def test_a_watch_of_the_library_gives_one_event_after_the_other(
    library: str, connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    api.rules.tokens = {"token-1"}
    watches = import_module(f"{library}.watch")
    async with api_client(connect_to(), library=library) as client, watches.Watch() as watch:
        events = watch.stream(core(library, client).list_namespaced_pod, "default", timeout_seconds=60)
        first = asyncio.create_task(anext(events))
        await asyncio.to_thread(api.wait_for_watches, 1)
        api.emit(event("a"))
        assert (await first)["object"].metadata.name == "a"
        api.emit(event("b"))
        assert (await anext(events))["object"].metadata.name == "b"
        api.end_watches()
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert plugin.runs == 1


async def test_an_event_may_be_as_large_as_an_object(library: str, connect_to: Connect, api: ApiServer) -> None:
    large = event("large")
    large["object"]["metadata"]["annotations"] = {"text": "x" * 1_500_000}
    watches = import_module(f"{library}.watch")
    async with api_client(connect_to(), library=library) as client, watches.Watch() as watch:
        events = watch.stream(core(library, client).list_namespaced_pod, "default", timeout_seconds=60)
        first = asyncio.create_task(anext(events))
        await asyncio.to_thread(api.wait_for_watches, 1)
        api.emit(large)
        assert len((await first)["object"].metadata.annotations["text"]) == 1_500_000
        api.end_watches()


@pytest.mark.parametrize("preload", [True, False])
async def test_exec_is_signed_and_a_rejected_one_is_refreshed(
    library: str, connect_to: Connect, ca: trustme.CA, plugin: PluginScript, preload: bool
) -> None:
    async with (
        exec_server(ca, tokens={"token-1"}) as server,
        ws_api_client(connect_to(server=server.url), library=library, heartbeat=30) as client,
    ):
        assert await output_of(library, client, preload=preload) == "ls -l"
        server.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert await output_of(library, client, preload=preload) == "ls -l"
    assert server.statuses == [101, 401, 101]
    assert [headers["Authorization"] for headers in server.seen] == [
        "Bearer token-1", "Bearer token-1", "Bearer token-2"
    ]  # fmt: skip
    assert plugin.runs == 2


async def output_of(library: str, client: Any, *, preload: bool) -> str:
    """What ``ls -l`` prints: as the library collects it, or as it comes through the WebSocket."""
    exec_in_pod = core(library, client).connect_get_namespaced_pod_exec
    arguments = {"name": "web", "namespace": "default", "command": ["ls", "-l"], "stdout": True}
    if preload:
        return str(await exec_in_pod(**arguments))
    if library == "kubernetes.aio":
        exec_in_pod = core(library, client).connect_get_namespaced_pod_exec_without_preload_content
    else:
        arguments["_preload_content"] = False
    async with await exec_in_pod(**arguments) as socket:
        messages = [message.data async for message in socket]
    assert client.parse_error_data(messages[-1][1:]) == 0
    return "".join(message[1:].decode() for message in messages if message[:1] == STDOUT)


async def test_the_retries_of_the_library_go_through_our_session(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    async with api_client(connect_to(), library="kubernetes.aio") as client:
        # As `Configuration.retries` sets it up; the first answer is not one to retry.
        client.rest_client._effective_retry_options = aiohttp_retry.ExponentialRetry(attempts=2)
        await core("kubernetes.aio", client).list_namespaced_pod("default")
        assert client.rest_client.retry_client is not None
    assert api.requests[0].headers.get_list("Authorization") == ["Bearer token-1"]


# --- the edges ---


@pytest.mark.filterwarnings("error")
async def test_a_client_that_was_never_used_leaves_nothing_behind(library: str, connect_to: Connect) -> None:
    async with api_client(connect_to(), library=library):
        pass
    await ws_api_client(connect_to(), library=library).close()
    gc.collect()


async def test_options_are_those_of_the_session(library: str, connect_to: Connect, api: ApiServer) -> None:
    async with api_client(connect_to(), library=library, headers={"X-Team": "blue"}) as client:
        await core(library, client).list_namespaced_pod("default")
    assert api.requests[0].headers.get_list("X-Team") == ["blue"]


async def test_another_library_is_refused(connect_to: Connect) -> None:
    with pytest.raises(ConfigurationError, match="asyncpg"):
        api_client(connect_to(), library="asyncpg")


@pytest.mark.filterwarnings("error")
async def test_a_socks_proxy_is_refused_with_a_reason(library: str, connect_to: Connect) -> None:
    connection = connect_to(cluster={"proxy-url": "socks5://proxy.test:1080"})
    with pytest.raises(TransportError, match="SOCKS"):
        api_client(connection, library=library)
    gc.collect()


async def test_a_connection_makes_either(connect_to: Connect, api: ApiServer) -> None:
    connection = connect_to()
    for library, client in zip(LIBRARIES, (connection.kubernetes_aio(), connection.kubernetes_asyncio()), strict=True):
        async with client:
            await core(library, client).list_namespaced_pod("default")
    assert api.statuses == [200, 200]
