"""The adapter for aiohttp: the contract of all adapters, and what is aiohttp's own."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import traceback
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

from ostiary.client.adapters.aiohttp import Connector, session, sign
from ostiary.client.connection import Connection
from ostiary.errors import ConfigurationError, TransportError
from tests.conformance.adapters.contract import (
    AdapterContract,
    AsyncDriver,
    IssueCertificate,
    Reply,
    redirect_to,
)
from tests.conformance.adapters.exec_server import EXEC, STDOUT, exec_server
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.http_server import HttpServer, Response
from tests.support.plugins import PluginScript
from tests.support.proxy import ConnectProxy

PODS = "api/v1/namespaces/default/pods"
CANARY = "canary-7d20b1c4"


class AiohttpDriver(AsyncDriver):
    refusal = aiohttp.ClientConnectorCertificateError
    unreachable = aiohttp.ClientConnectorError
    # aiohttp makes its context for everybody when it is imported.
    reads_trust_late = False

    async def open(self, connection: Connection) -> None:
        self.session = connection.aiohttp(timeout=aiohttp.ClientTimeout())

    async def get_async(self, path: str, headers: Mapping[str, str] | None) -> Reply:
        async with self.session.get(path, headers=headers) as response:
            return Reply(response.status, await response.read())

    async def post_async(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        data = body if isinstance(body, bytes) else _later(body)
        async with self.session.post(path, data=data) as response:
            return Reply(response.status, await response.read())

    @asynccontextmanager
    async def watch_async(self, path: str) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
        async with self.session.get(path) as response:
            yield aiter(response.content).__anext__

    async def close_async(self) -> None:
        await self.session.close()

    def shown(self) -> Iterable[object]:
        return self.run(self._shown)

    async def _shown(self) -> Iterable[object]:
        async with self.session.get("api/v1/forbidden") as response:
            error = aiohttp.ClientResponseError(response.request_info, response.history, status=response.status)
            request = response.request_info
            return [self.session, vars(self.session), response, request, dict(request.headers), error]


async def _later(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class TestSession(AdapterContract):
    open_driver = AiohttpDriver


# --- options ---


async def test_options_reach_the_session(connect_to: Connect, api: ApiServer) -> None:
    async with session(connect_to(), headers={"X-Team": "blue"}, raise_for_status=True) as client:
        with pytest.raises(aiohttp.ClientResponseError, match="403"):
            await client.get("api/v1/forbidden")
    assert api.requests[0].headers.get_list("X-Team") == ["blue"]


async def test_a_status_is_raised_only_after_the_second_try(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    async with session(connect_to(), raise_for_status=True) as client:
        await client.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        await client.get(PODS)
    assert api.statuses == [200, 401, 200]


@pytest.mark.parametrize("option", ["base_url", "proxy", "proxy_auth"])
async def test_what_the_connection_decides_is_no_option(connect_to: Connect, option: str) -> None:
    with pytest.raises(ConfigurationError, match=option):
        session(connect_to(), **{option: None})


async def test_limits_are_those_of_our_connector(connect_to: Connect, api: ApiServer) -> None:
    connection = connect_to()
    async with session(connection, connector=Connector(connection, limit=1)) as client:
        answers = await asyncio.gather(*(client.get(PODS) for _ in range(4)))
        assert [answer.status for answer in answers] == [200] * 4
    assert api.connections == 1


async def test_a_connector_that_does_not_know_the_cluster_is_refused(connect_to: Connect) -> None:
    async with aiohttp.TCPConnector() as foreign, Connector(connect_to()) as of_another_connection:
        for connector in (foreign, of_another_connection):
            with pytest.raises(ConfigurationError, match="Connector"):
                session(connect_to(), connector=connector)


async def test_middlewares_of_the_user_see_each_request_once_and_unsigned(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    seen: list[bool] = []

    async def look(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        seen.append("Authorization" in request.headers)
        return await handler(request)

    async with session(connect_to(), middlewares=[look]) as client:
        await client.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert (await client.get(PODS)).status == 200
    assert seen == [False, False]
    assert api.statuses == [200, 401, 200]


async def test_a_request_with_middlewares_of_its_own_can_be_signed_too(connect_to: Connect, api: ApiServer) -> None:
    api.rules.tokens = {"token-1"}
    connection = connect_to()
    async with session(connection) as client:
        assert (await client.get(PODS, middlewares=[sign(connection)])).status == 200


async def test_compression_that_the_kubeconfig_disables_is_not_asked_for(connect_to: Connect, api: ApiServer) -> None:
    async with session(connect_to()) as client:
        await client.get(PODS)
    async with session(connect_to(cluster={"disable-compression": True})) as client:
        await client.get(PODS)
    assert "gzip" in (api.requests[0].headers.get("Accept-Encoding", ""))
    assert api.requests[1].headers.get_list("Accept-Encoding") == ["identity"]


# --- bodies ---


async def test_a_file_is_sent_again_from_where_it_stood(
    connect_to: Connect, api: ApiServer, plugin: PluginScript, tmp_path: Path
) -> None:
    (tmp_path / "upload").write_bytes(b"skipped" + b"x" * 300_000)
    async with session(connect_to()) as client:
        await client.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        with (tmp_path / "upload").open("rb") as file:
            file.seek(7)
            assert (await client.post("api/v1/echo", data=file)).status == 200
    assert [request.body for request in api.requests[1:]] == [b"x" * 300_000] * 2


async def test_a_pipe_is_not_sent_again(connect_to: Connect, api: ApiServer, plugin: PluginScript) -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(b"once")
    stream.feed_eof()
    async with session(connect_to()) as client:
        await client.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert (await client.post("api/v1/echo", data=stream)).status == 401
        assert (await client.get(PODS)).status == 200
    assert [request.body for request in api.requests] == [b"", b"once", b""]


# --- WebSockets ---


async def test_a_websocket_is_signed_and_a_rejected_one_is_refreshed(
    connect_to: Connect, ca: trustme.CA, plugin: PluginScript
) -> None:
    async with (
        exec_server(ca, tokens={"token-2"}) as server,
        session(connect_to(server=server.url)) as client,
    ):
        plugin.answer(token="token-1").before("if [ $(wc -l < runs) = 2 ]; then mv second answer; fi")
        (plugin.folder / "second").write_bytes((plugin.folder / "answer").read_bytes().replace(b"token-1", b"token-2"))
        async with client.ws_connect(server.url.replace("https", "wss") + EXEC + "?command=date") as socket:
            assert await socket.receive_bytes() == STDOUT + b"date"
    assert server.statuses == [401, 101]
    assert plugin.runs == 2


async def test_a_websocket_to_another_server_is_not_signed(connect_to: Connect, ca: trustme.CA) -> None:
    connection = connect_to()
    trusting = ssl.create_default_context(cadata=ca.cert_pem.bytes().decode())
    async with (
        exec_server(ca, tokens={"token-1"}) as elsewhere,
        session(connection, connector=Connector(connection, ssl=trusting)) as client,
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await client.ws_connect(elsewhere.url + EXEC)
    assert "Authorization" not in elsewhere.seen[0]


# --- proxies ---


@pytest.mark.filterwarnings("error")
async def test_a_socks_proxy_is_refused_with_a_reason_and_without_its_password(connect_to: Connect) -> None:
    with pytest.raises(TransportError, match="SOCKS") as caught:
        session(connect_to(cluster={"proxy-url": f"socks5://user:{CANARY}@proxy.test:1080"}))
    assert caught.value.code == "proxy-invalid"
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    gc.collect()


@asynccontextmanager
async def listening(serve: Callable[..., Awaitable[None]], tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server on loopback; gives its host and port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"localhost:{server.sockets[0].getsockname()[1]}"


async def test_a_proxy_that_refuses_us_does_not_make_an_error_with_its_password(connect_to: Connect) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with listening(refuse) as address:
        url = f"http://user:{CANARY}@{address}"
        async with session(connect_to(cluster={"proxy-url": url})) as client:
            with pytest.raises(aiohttp.ClientHttpProxyError, match="407") as caught:
                await client.get(PODS)
    assert_hides_password(caught.value)


async def test_a_proxy_that_is_not_there_does_not_make_an_error_with_its_password(connect_to: Connect) -> None:
    async with session(connect_to(cluster={"proxy-url": f"http://user:{CANARY}@localhost:1"})) as client:
        with pytest.raises(aiohttp.ClientProxyConnectionError) as caught:
            await client.get(PODS)
    assert_hides_password(caught.value)


def assert_hides_password(error: BaseException) -> None:
    encoded = b64encode(f"user:{CANARY}".encode()).decode()
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    assert CANARY not in shown
    assert encoded not in shown


async def test_a_server_without_tls_is_asked_through_the_proxy_which_is_told_its_password(connect_to: Connect) -> None:
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with listening(answer) as address:
        connection = connect_to(server="http://api.test", cluster={"proxy-url": f"http://user:word@{address}"})
        async with session(connection) as client:
            assert (await client.get("version")).status == 200
    assert heads[0].startswith("GET http://api.test/version HTTP/1.1\r\n")
    assert f"Proxy-Authorization: Basic {b64encode(b'user:word').decode()}\r\n" in heads[0]
    assert "\r\nAuthorization" not in heads[0]


class TlsProxy:
    """A CONNECT proxy over TLS, which asks for a client certificate and remembers whether one came."""

    def __init__(self, ca: trustme.CA, *, clients: trustme.CA) -> None:
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("localhost").configure_cert(self.tls)
        clients.configure_trust(self.tls)
        self.tls.verify_mode = ssl.CERT_OPTIONAL
        self.certificates: list[Any] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.certificates.append(writer.get_extra_info("peercert"))
        head = await reader.readuntil(b"\r\n\r\n")
        port = int(head.split()[1].rpartition(b":")[2])
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, upstream_writer), _copy(upstream_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def test_a_proxy_over_tls_is_trusted_by_the_machine_and_sees_no_client_certificate(
    connect_to: Connect, ca: trustme.CA, plugin: PluginScript, client_certificate: IssueCertificate
) -> None:
    certificate, key = client_certificate("alice")
    plugin.answer(certificate=certificate, key=key)
    machine = trustme.CA()
    proxy = TlsProxy(machine, clients=ca)
    with ApiServer(ca, hostname="api.cluster.test").running() as api:
        async with listening(proxy.serve, proxy.tls) as address:
            # The name that the server is asked for is not the proxy's.
            cluster = {"proxy-url": f"https://{address}", "tls-server-name": "api.cluster.test"}
            connection = connect_to(server=f"https://localhost:{api.port}", cluster=cluster)
            trusting = ssl.create_default_context(cadata=machine.cert_pem.bytes().decode())
            async with session(connection, connector=Connector(connection, ssl=trusting)) as client:
                assert (await client.get(PODS)).status == 200
        assert api.requests[0].certificate == "alice"
    assert proxy.certificates == [None]


async def test_a_proxy_over_tls_is_not_vouched_for_by_the_clusters_authority(
    connect_to: Connect, api: ApiServer, ca: trustme.CA
) -> None:
    proxy = TlsProxy(ca, clients=ca)
    async with (
        listening(proxy.serve, proxy.tls) as address,
        session(connect_to(cluster={"proxy-url": f"https://{address}"})) as client,
    ):
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await client.get(PODS)
    assert api.requests == []
    assert proxy.certificates == []


async def test_the_clusters_proxy_is_not_everybodys(connect_to: Connect, api: ApiServer) -> None:
    with HttpServer(Response(body={})).running() as elsewhere, ConnectProxy().running() as proxy:
        async with session(connect_to(cluster={"proxy-url": proxy.url})) as client:
            assert (await client.get(redirect_to(elsewhere.url + "/there"))).status == 200
        assert [request.target for request in elsewhere.requests] == ["/there"]
        assert proxy.targets == [f"localhost:{api.port}"]


async def test_a_name_outside_ascii_is_the_servers_in_both_spellings(connect_to: Connect, ca: trustme.CA) -> None:
    with ApiServer(ca, hostname="xn--mnchen-3ya.test").running() as api, ConnectProxy().running() as proxy:
        api.rules.tokens = {"token-1"}
        connection = connect_to(server=f"https://münchen.test:{api.port}", cluster={"proxy-url": proxy.url})
        async with session(connection) as client:
            assert (await client.get(PODS)).status == 200
            assert (await client.get(f"{api.url}/{PODS}")).status == 200


# --- waiting ---


async def test_a_request_that_is_given_up_does_not_end_the_plugins_run_that_others_wait_for(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    api.rules.tokens = {"token-1"}
    gate = plugin.folder / "gate"
    os.mkfifo(gate)
    plugin.before("read line < gate")
    async with session(connect_to()) as client:

        async def ask() -> int:
            async with client.get(PODS) as answer:
                return answer.status

        given_up, patient = asyncio.create_task(ask()), asyncio.create_task(ask())
        # Opening the gate waits until the plugin stands at it.
        with await asyncio.to_thread(gate.open, "w") as opened:
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            opened.write("go\n")
        assert await patient == 200
    assert plugin.runs == 1


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("/api/v1/pods?limit=1", "/k8s/c-1/api/v1/pods?limit=1"),
        ("api/v1/pods", "/k8s/c-1/api/v1/pods"),
        ("/a:b/x%2Fy", "/k8s/c-1/a:b/x%2Fy"),
        ("/", "/k8s/c-1/"),
        ("", "/k8s/c-1/"),
        ("{server}/elsewhere", "/elsewhere"),
    ],
)
def test_a_path_is_below_the_servers_address_with_or_without_a_leading_slash(
    api: ApiServer, connect_to: Connect, asked: str, path: str
) -> None:
    """As with every other client, so that no request reaches another cluster behind the same host."""

    async def ask() -> None:
        connection = connect_to(server=f"{api.url}/k8s/c-1")
        async with connection.aiohttp() as client, client.get(asked.format(server=api.url)) as answer:
            await answer.read()

    asyncio.run(ask())
    assert api.requests[0].target == path
