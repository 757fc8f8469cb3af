"""The adapter for httpx and httpx2: the contract for each kind of client, and what is httpx's own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from ssl import SSLSocket
from types import ModuleType
from typing import Any

import h2.config
import h2.connection
import h2.events
import httpx
import httpx2
import pytest
import trustme

from ostiary.client.adapters.httpx import async_client, async_transport, client, transport
from ostiary.client.connection import Connection
from ostiary.errors import ConfigurationError, TransportError
from tests.conformance.adapters.contract import (
    PODS,
    WATCH,
    AdapterContract,
    AsyncDriver,
    Driver,
    IssueCertificate,
    Reply,
    assert_nothing_of_ours,
    redirect_to,
    trust_everywhere,
)
from tests.conformance.adapters.raw_server import RawServer, header, read_head
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig
from tests.support.proxy import ConnectProxy

LIBRARIES = [httpx, httpx2]
both = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)


class HttpxDriver(Driver):
    library: Any = httpx
    refusal = httpx.ConnectError
    unreachable = httpx.ConnectError

    def __init__(self, connection: Connection) -> None:
        self.client = client(connection, library=self.library, follow_redirects=True, timeout=None)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        response = self.client.get(path, headers=headers)
        return Reply(response.status_code, response.content)

    def post(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        response = self.client.post(path, content=body)
        return Reply(response.status_code, response.content)

    @contextmanager
    def watch(self, path: str) -> Iterator[Iterator[bytes]]:
        with self.client.stream("GET", path) as response:
            yield (line.encode() for line in response.iter_lines())

    def close(self) -> None:
        self.client.close()

    def shown(self) -> Iterable[object]:
        response = self.client.get("/api/v1/forbidden")
        return [self.client, vars(self.client), response, response.request, dict(response.request.headers)]


class Httpx2Driver(HttpxDriver):
    library = httpx2
    refusal = httpx2.ConnectError  # type: ignore[assignment]
    unreachable = httpx2.ConnectError  # type: ignore[assignment]


class AsyncHttpxDriver(AsyncDriver):
    library: Any = httpx
    refusal = httpx.ConnectError
    unreachable = httpx.ConnectError

    async def open(self, connection: Connection) -> None:
        self.client = async_client(connection, library=self.library, follow_redirects=True, timeout=None)

    async def get_async(self, path: str, headers: Mapping[str, str] | None) -> Reply:
        response = await self.client.get(path, headers=headers)
        return Reply(response.status_code, response.content)

    async def post_async(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        content = body if isinstance(body, bytes) else _later(body)
        response = await self.client.post(path, content=content)
        return Reply(response.status_code, response.content)

    @asynccontextmanager
    async def watch_async(self, path: str) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
        async with self.client.stream("GET", path) as response:
            lines = response.aiter_lines()

            async def next_line() -> bytes:
                return (await anext(lines)).encode()

            yield next_line

    async def close_async(self) -> None:
        await self.client.aclose()

    def shown(self) -> Iterable[object]:
        response = self.run(self.client.get, "/api/v1/forbidden")
        return [self.client, vars(self.client), response, response.request, dict(response.request.headers)]


async def _later(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class TrioHttpxDriver(AsyncHttpxDriver):
    backend = "trio"


class AsyncHttpx2Driver(AsyncHttpxDriver):
    library = httpx2
    refusal = httpx2.ConnectError  # type: ignore[assignment]
    unreachable = httpx2.ConnectError  # type: ignore[assignment]


class TrioHttpx2Driver(AsyncHttpx2Driver):
    backend = "trio"


class TestHttpx(AdapterContract):
    open_driver = HttpxDriver


class TestHttpx2(AdapterContract):
    open_driver = Httpx2Driver


class TestHttpxInAsyncio(AdapterContract):
    open_driver = AsyncHttpxDriver


class TestHttpxInTrio(AdapterContract):
    open_driver = TrioHttpxDriver


class TestHttpx2InAsyncio(AdapterContract):
    open_driver = AsyncHttpx2Driver


class TestHttpx2InTrio(AdapterContract):
    open_driver = TrioHttpx2Driver


# --- which library ---


def test_httpx_is_the_library_unless_another_is_given(connect_to: Connect) -> None:
    made: list[object] = [client(connect_to()), client(connect_to(), library=httpx2)]
    assert [type(one) for one in made] == [httpx.Client, httpx2.Client]


def test_a_program_that_uses_httpx2_never_imports_httpx(tmp_path: Path, plugin: PluginScript, api: ApiServer) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "config", server=api.url, user=exec_user(plugin.path))
    program = f"""
import sys
from ostiary.client.connection import connect
connection = connect({str(kubeconfig)!r})
assert not {{"httpx", "httpx2"}} & set(sys.modules), "connect() imported a library"
import httpx2
from ostiary.client.adapters.httpx import async_client, client
client(connection, library=httpx2).close()
async_client(connection, library=httpx2)
assert "httpx" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# --- options ---


@both
def test_options_are_those_of_the_library(connect_to: Connect, api: ApiServer, library: ModuleType) -> None:
    seen: list[Any] = []
    options = {
        "headers": {"User-Agent": "mine"},
        "timeout": 33.0,
        "limits": library.Limits(max_connections=1),
        "event_hooks": {"request": [seen.append], "response": [seen.append]},
    }
    with client(connect_to(), library=library, **options) as made:
        assert made.get(PODS).status_code == 200
        assert made.timeout == library.Timeout(33.0)
    assert api.requests[0].headers.get_list("User-Agent") == ["mine"]
    request, response = seen
    assert request is response.request
    # Signing happens below: whoever logs requests in a hook logs no token.
    assert "Authorization" not in request.headers


@pytest.mark.parametrize("name", ["base_url", "cert", "proxy", "transport", "verify"])
def test_an_option_that_would_lead_around_the_connection_is_refused(connect_to: Connect, name: str) -> None:
    for make in (client, async_client, transport, async_transport):
        with pytest.raises(ConfigurationError) as caught:
            make(connect_to(), **{name: None})
        assert caught.value.code == "config-invalid"
        assert str(caught.value.cause).startswith(f"{name}: ")


@both
def test_compression_that_the_kubeconfig_disables_is_not_asked_for(
    connect_to: Connect, api: ApiServer, library: ModuleType
) -> None:
    with client(connect_to(), library=library) as made:
        made.get(PODS)
    with client(connect_to(cluster={"disable-compression": True}), library=library) as made:
        made.get(PODS)
    assert [request.headers.get_list("Accept-Encoding") for request in api.requests][1] == ["identity"]
    assert "gzip" in str(api.requests[0].headers.get("Accept-Encoding"))


@both
@pytest.mark.skipif(find_spec("socksio") is not None, reason="socksio is installed, so SOCKS proxies work")
def test_a_socks_proxy_without_the_package_for_it_is_told_at_once(connect_to: Connect, library: ModuleType) -> None:
    connection = connect_to(cluster={"proxy-url": "socks5://porter:sesame@127.0.0.1:1080"})
    for make in (client, async_client):
        with pytest.raises(TransportError) as caught:
            make(connection, library=library)
        assert (caught.value.code, caught.value.hint) == ("proxy-invalid", f"pip install '{library.__name__}[socks]'")
        assert "sesame" not in str(caught.value)


# --- where requests go ---


@both
def test_a_transport_can_be_mounted_in_a_client_of_ones_own(
    connect_to: Connect,
    api: ApiServer,
    library: ModuleType,
    ca: trustme.CA,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    trust_everywhere(ca, monkeypatch, tmp_path)
    with ApiServer(ca).running() as other:
        signed = transport(connect_to(), library=library)
        assert isinstance(signed, library.BaseTransport)
        # The pattern takes in more than the cluster.
        with library.Client(mounts={"https://localhost": signed}) as made:
            assert made.get(api.url + PODS).status_code == 200
            assert made.get(other.url + PODS).status_code == 200
    assert api.requests[0].headers.get("Authorization") == "Bearer token-1"
    assert len(other.requests) == 1
    assert_nothing_of_ours(other.requests)


@both
async def test_an_async_transport_can_be_mounted_as_well(
    connect_to: Connect, api: ApiServer, library: ModuleType
) -> None:
    signed = async_transport(connect_to(), library=library)
    assert isinstance(signed, library.AsyncBaseTransport)
    async with library.AsyncClient(mounts={"all://": signed}) as made:
        assert (await made.get(api.url + PODS)).status_code == 200
    assert api.requests[0].headers.get("Authorization") == "Bearer token-1"


@both
def test_no_proxy_in_the_environment_does_not_lead_around_the_signing(
    connect_to: Connect, api: ApiServer, library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "localhost,.localhost,127.0.0.1")
    with client(connect_to(), library=library) as made:
        assert made.get(PODS).status_code == 200
    assert api.requests[0].headers.get("Authorization") == "Bearer token-1"


@both
def test_elsewhere_the_proxy_of_the_environment_is_used(
    connect_to: Connect, ca: trustme.CA, library: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trust_everywhere(ca, monkeypatch, tmp_path)
    with ConnectProxy().running() as proxy, ApiServer(ca, hostname="far.test").running() as far:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with client(connect_to(), library=library, follow_redirects=True) as made:
            assert made.get(redirect_to(far.url + PODS)).status_code == 200
        assert proxy.targets == [f"far.test:{far.port}"]
        assert_nothing_of_ours(far.requests)


@pytest.mark.parametrize(
    ("server", "url", "ours"),
    [
        ("https://api.test", "https://api.test/api", True),
        ("https://api.test", "https://api.test:443/api", True),
        ("https://api.test", "https://API.test/api", True),
        ("https://api.test", "wss://api.test/exec", True),
        ("https://api.test", "https://api.test:8443/api", False),
        ("https://api.test", "http://api.test/api", False),
        ("https://api.test", "ws://api.test/exec", False),
        ("https://api.test", "https://api.test.evil.test/api", False),
        ("https://api.test", "https://evil.test/https://api.test", False),
        ("https://api.test", "https://api.test@evil.test/api", False),
        ("https://[::1]:6443", "https://[::1]:6443/api", True),
        ("https://bücher.test", "https://xn--bcher-kva.test/api", True),
        ("https://xn--bcher-kva.test", "https://bücher.test/api", True),
    ],
)
@both
def test_only_the_clusters_own_address_is_signed_for(
    connect_to: Connect, library: ModuleType, server: str, url: str, ours: bool
) -> None:
    signed: Any = transport(connect_to(server=server), library=library)
    assert signed.is_server(library.URL(url)) is ours


# --- connections ---


async def test_a_request_that_was_cancelled_does_not_keep_old_connections_open(
    connect_to: Connect, api: ApiServer, plugin: PluginScript, client_certificate: IssueCertificate
) -> None:
    first, second = client_certificate("first"), client_certificate("second")
    plugin.answer(certificate=first[0], key=first[1])
    with ConnectProxy().running() as proxy:
        async with async_client(connect_to(cluster={"proxy-url": proxy.url}), timeout=None) as made:
            async with made.stream("GET", WATCH):
                await asyncio.to_thread(api.wait_for_watches, 1)
                api.barrier = threading.Barrier(2)
                await asyncio.gather(made.get(PODS), made.get(PODS))
                api.barrier = hold = Hold()
                stuck = asyncio.create_task(made.get(PODS))
                await asyncio.to_thread(hold.arrived.wait, 30)
                stuck.cancel()
                with suppress(asyncio.CancelledError):
                    await stuck
                api.barrier = None
                hold.released.set()
                plugin.answer(certificate=second[0], key=second[1])
                api.rules.certificates = {"second"}
                assert (await made.get(PODS)).status_code == 200
                # One was cancelled, the other was idle.
                for tunnel in proxy.tunnels[1:3]:
                    await asyncio.to_thread(tunnel.wait_until_left)
            # And the first connection goes with its last answer.
            await asyncio.to_thread(proxy.tunnels[0].wait_until_left)


class Hold(threading.Barrier):
    """Holds requests at the server until they are released, and tells when one has arrived."""

    def __init__(self) -> None:
        super().__init__(1)
        self.arrived, self.released = threading.Event(), threading.Event()

    def wait(self, timeout: float | None = None) -> int:
        self.arrived.set()
        self.released.wait(timeout)
        return 0


async def test_a_caller_who_gives_up_while_the_plugin_runs_frees_the_answer(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    async with async_client(connect_to(), limits=httpx.Limits(max_connections=1), timeout=None) as made:
        await made.get(PODS)
        api.rules.tokens = {"token-2"}
        gate = _Gate(plugin)
        plugin.answer(token="token-2")
        waiting = asyncio.create_task(made.get(PODS))
        await asyncio.to_thread(gate.wait_until_plugin_runs)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        gate.open()
        # The only connection there may be is free again.
        assert (await made.get(PODS)).status_code == 200
    assert plugin.runs == 2


class _Gate:
    """Holds the plugin in the middle of its run: two pipes in its folder."""

    def __init__(self, plugin: PluginScript) -> None:
        self._arrived, self._go = plugin.folder / "arrived", plugin.folder / "go"
        os.mkfifo(self._arrived)
        os.mkfifo(self._go)
        plugin.before("echo > arrived; read line < go")

    def wait_until_plugin_runs(self) -> None:
        self._arrived.read_text()

    def open(self) -> None:
        self._go.write_text("\n")


@both
def test_an_endless_401_is_not_read_to_its_end(
    connect_to: Connect, ca: trustme.CA, plugin: PluginScript, library: ModuleType
) -> None:
    cut = threading.Event()

    def serve(connection: SSLSocket) -> None:
        head = read_head(connection)
        if header(head, "Authorization") == ["Bearer token-2"]:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            read_head(connection)
            return
        plugin.answer(token="token-2")
        connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
        except OSError:
            cut.set()

    with RawServer(ca, serve) as server, client(connect_to(server=server.url), library=library) as made:
        assert made.get("/api").status_code == 200
        assert cut.wait(30)


@both
def test_http2_is_spoken_when_asked_for(
    connect_to: Connect, ca: trustme.CA, plugin: PluginScript, library: ModuleType
) -> None:
    served = Http2({"token-1"})
    with RawServer(ca, served, protocols=("h2", "http/1.1")) as server:
        connection = connect_to(server=server.url)
        with client(connection, library=library, http2=True) as made:
            assert made.get("/api").status_code == 200
            served.allowed = {"token-2"}
            plugin.answer(token="token-2")
            response = made.get("/api")
            assert (response.status_code, response.http_version) == (200, "HTTP/2")
    assert served.tokens == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]
    assert served.connections == 1


def test_a_client_of_http2_does_not_make_others_offer_it(connect_to: Connect, ca: trustme.CA) -> None:
    def serve(connection: SSLSocket) -> None:
        connection.recv(1)

    with RawServer(ca, serve, protocols=("h2", "http/1.1")) as server:
        connection = connect_to(server=server.url)
        for_others = connection.ssl_context()
        assert for_others is not None
        with client(connection, http2=True) as made, suppress(httpx.TransportError):
            made.get("/api")
        with (
            socket.create_connection(("127.0.0.1", server.port)) as tcp,
            for_others.wrap_socket(tcp, server_hostname="localhost") as tls,
        ):
            assert tls.selected_alpn_protocol() is None


class Http2:
    """Serves HTTP/2 to whoever brings one of the tokens."""

    def __init__(self, allowed: set[str]) -> None:
        self.allowed = allowed
        self.tokens: list[str] = []
        self.connections = 0

    def __call__(self, connection: SSLSocket) -> None:
        self.connections += 1
        state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        state.initiate_connection()
        connection.sendall(state.data_to_send())
        while data := connection.recv(65536):
            for event in state.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    self._answer(state, event)
            connection.sendall(state.data_to_send())

    def _answer(self, state: h2.connection.H2Connection, event: h2.events.RequestReceived) -> None:
        token = dict(event.headers or []).get(b"authorization", b"").decode()
        self.tokens.append(token)
        status = "200" if token.removeprefix("Bearer ") in self.allowed else "401"
        assert event.stream_id is not None
        state.send_headers(event.stream_id, [(":status", status), ("content-length", "2")])
        state.send_data(event.stream_id, b"{}", end_stream=True)
