"""The adapter for urllib3: the contract of all adapters, and what is urllib3's own."""

from __future__ import annotations

import importlib.util
import io
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import MaxRetryError, SSLError
from urllib3.util import Retry

from ostiary.client.adapters.urllib3 import ServerPool
from ostiary.client.connection import Connection
from ostiary.errors import ConfigurationError, TransportError
from ostiary_gateway.testing import FakeClock
from tests.conformance.adapters.contract import (
    PODS,
    WATCH,
    AdapterContract,
    Driver,
    IssueCertificate,
    Reply,
)
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.http_server import HttpServer
from tests.support.plugins import PluginScript
from tests.support.proxy import ConnectProxy


class Urllib3Driver(Driver):
    refusal = (MaxRetryError, SSLError)
    unreachable = MaxRetryError

    def __init__(self, connection: Connection) -> None:
        self.manager = connection.urllib3(retries=2)
        self._last: list[BaseHTTPResponse] = []

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self._reply(self.manager.request("GET", path, headers=headers))

    def post(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        return self._reply(self.manager.request("POST", path, body=body))

    def _reply(self, response: BaseHTTPResponse) -> Reply:
        self._last = [response]
        return Reply(response.status, response.data)

    @contextmanager
    def watch(self, path: str) -> Iterator[Iterator[bytes]]:
        response = self.manager.request("GET", path, preload_content=False)
        try:
            yield iter(response)
        finally:
            response.close()

    def close(self) -> None:
        self.manager.clear()

    def shown(self) -> Iterable[object]:
        pools = self.manager.pools
        return [self.manager, *self._last, *(pools[key] for key in list(pools.keys())), vars(self.manager)]


class TestPoolManager(AdapterContract):
    open_driver = Urllib3Driver

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(lambda: "text", id="text"),
            pytest.param(lambda: bytearray(b"text"), id="bytearray"),
            pytest.param(lambda: [b"te", b"xt"], id="list"),
            pytest.param(lambda: _file_at(2, b"--text"), id="file that has been read a little"),
        ],
    )
    def test_a_body_that_can_be_sent_again_is_sent_again_whole(
        self, connect_to: Connect, api: ApiServer, plugin: PluginScript, body: Callable[[], Any]
    ) -> None:
        with connect_to().urllib3() as manager:
            manager.request("GET", PODS)
            api.rules.tokens = {"token-2"}
            plugin.answer(token="token-2")
            assert manager.request("POST", "/api/v1/echo", body=body()).status == 200
        assert [request.body for request in api.requests[1:]] == [b"text", b"text"]

    def test_a_file_that_cannot_be_rewound_gets_its_401(
        self, connect_to: Connect, api: ApiServer, plugin: PluginScript
    ) -> None:
        reading, writing = os.pipe()
        os.write(writing, b"text")
        os.close(writing)
        with connect_to().urllib3() as manager, open(reading, "rb") as pipe:
            manager.request("GET", PODS)
            api.rules.tokens = {"token-2"}
            plugin.answer(token="token-2")
            assert manager.request("POST", "/api/v1/echo", body=pipe).status == 401
        assert api.statuses == [200, 401]

    def test_a_401_that_nobody_reads_is_drained_and_its_connection_used_again(
        self, connect_to: Connect, api: ApiServer, plugin: PluginScript
    ) -> None:
        with connect_to().urllib3(maxsize=1, block=True) as manager:
            manager.request("GET", PODS)
            api.rules.tokens = {"token-2"}
            plugin.answer(token="token-2")
            response = manager.request("GET", PODS, preload_content=False)
            assert (response.status, len(response.json()["items"])) == (200, 5)
        assert api.connections == 1

    def test_whoever_waits_for_a_connection_while_the_certificate_rotates_gets_one(
        self,
        connect_to: Connect,
        api: ApiServer,
        plugin: PluginScript,
        clock: FakeClock,
        client_certificate: IssueCertificate,
    ) -> None:
        first, second = client_certificate("first"), client_certificate("second")
        plugin.answer(certificate=first[0], key=first[1], expires_at=clock.now() + timedelta(hours=1))
        with connect_to().urllib3(maxsize=1, block=True) as manager, ThreadPoolExecutor(1) as thread:
            watch = manager.request("GET", WATCH, preload_content=False)
            api.wait_for_watches(1)
            (key,) = manager.pools.keys()
            waiting = thread.submit(manager.pools[key].urlopen, "GET", PODS)
            clock.advance(hours=2)
            plugin.answer(certificate=second[0], key=second[1])
            assert manager.request("GET", PODS).status == 200
            assert api.requests[-1].certificate == "second"
            assert not waiting.done()
            api.end_watches()
            watch.read()
            assert waiting.result(30).status == 200

    def test_a_stream_that_ends_after_the_rotation_closes_its_connection_even_while_it_is_held(
        self,
        connect_to: Connect,
        api: ApiServer,
        plugin: PluginScript,
        proxy: ConnectProxy,
        client_certificate: IssueCertificate,
    ) -> None:
        first, second = client_certificate("first"), client_certificate("second")
        plugin.answer(certificate=first[0], key=first[1])
        api.rules.certificates = {"first"}
        with connect_to(cluster={"proxy-url": proxy.url}).urllib3() as manager:
            watch = manager.request("GET", WATCH, preload_content=False)
            api.wait_for_watches(1)
            plugin.answer(certificate=second[0], key=second[1])
            api.rules.certificates = {"second"}
            assert manager.request("GET", PODS).status == 200
            api.end_watches()
            watch.read()
            proxy.tunnels[0].wait_until_left()

    def test_options_are_those_of_urllib3(self, connect_to: Connect, api: ApiServer) -> None:
        retries = Retry(total=2, status_forcelist=[503], raise_on_status=False)
        with connect_to().urllib3(headers={"X-Test": "yes"}, retries=retries) as manager:
            assert manager.request("GET", "/api/v1/broken").status == 503
        assert api.statuses == [503] * 3
        assert {request.headers.get("X-Test") for request in api.requests} == {"yes"}

    @pytest.mark.parametrize("option", ["ca_certs", "cert_file", "ssl_context", "assert_hostname", "cert_reqs"])
    def test_tls_is_no_option(self, connect_to: Connect, option: str) -> None:
        with pytest.raises(ConfigurationError, match=option):
            connect_to().urllib3(**{option: None})

    def test_what_a_library_sets_on_the_context_changes_nothing(
        self, connect_to: Connect, api: ApiServer, ca: trustme.CA, tmp_path: Path
    ) -> None:
        mine = tmp_path / "mine.pem"
        ca.issue_cert("mine@example.test", common_name="mine").private_key_and_cert_chain_pem.write_to_path(str(mine))

        def meddle(connection: Connection) -> Connection:
            context = connection.ssl_context()
            assert context is not None
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.load_cert_chain(str(mine))
            return connection

        with meddle(connect_to()).urllib3() as manager:
            manager.request("GET", PODS)
        assert api.requests[0].certificate is None
        with ApiServer(trustme.CA()).running() as impostor:
            with meddle(connect_to(server=impostor.url)).urllib3() as manager, pytest.raises(MaxRetryError):
                manager.request("GET", PODS)
            assert impostor.requests == []

    def test_a_path_that_looks_like_another_host_stays_at_the_server(self, connect_to: Connect, api: ApiServer) -> None:
        with connect_to().urllib3() as manager:
            manager.request("GET", "//elsewhere.test/api")
        # The test's server takes one of the two slashes away.
        assert api.requests[0].target.endswith("/elsewhere.test/api")

    @pytest.mark.parametrize(
        ("server", "url", "is_server"),
        [
            ("https://api.test", "https://API.test:443/version", True),
            ("https://api.test:443", "https://api.test/version", True),
            ("https://[::1]", "https://[::1]:443/version", True),
            ("https://api.test", "http://api.test/version", False),
            ("https://api.test", "https://api.test:6443/version", False),
            ("https://api.test", "https://api.test.elsewhere.test/version", False),
            ("https://api.test", "https://api.test@elsewhere.test/version", False),
        ],
    )
    def test_only_the_servers_own_address_is_signed(
        self, connect_to: Connect, server: str, url: str, is_server: bool
    ) -> None:
        with connect_to(server=server).urllib3() as manager:
            assert isinstance(manager.connection_from_url(url), ServerPool) is is_server

    def test_a_server_without_tls_is_reached_through_its_proxy_too(
        self, connect_to: Connect, plain_server: HttpServer
    ) -> None:
        # The "proxy" is the plain server itself, which sees what a proxy is asked.
        connection = connect_to(server="http://api.test:8080", cluster={"proxy-url": plain_server.url})
        with connection.urllib3() as manager:
            assert manager.request("GET", PODS).status == 200
        assert plain_server.requests[0].target == "http://api.test:8080" + PODS
        assert plain_server.requests[0].headers.get("Host") == "api.test:8080"

    def test_a_socks_proxy_needs_a_package_and_says_which(self, connect_to: Connect) -> None:
        if importlib.util.find_spec("socks") is not None:
            pytest.skip("PySocks is installed")
        connection = connect_to(cluster={"proxy-url": "socks5://porter:sesame@proxy.test"})
        with pytest.raises(TransportError, match="PySocks") as caught:
            connection.urllib3()
        assert caught.value.code == "proxy-invalid"
        assert "sesame" not in str(caught.value)


def _file_at(position: int, content: bytes) -> io.BytesIO:
    file = io.BytesIO(content)
    file.seek(position)
    return file
