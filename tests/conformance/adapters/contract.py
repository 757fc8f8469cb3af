"""What every adapter promises, tested once: each adapter runs this suite through a small driver.

    class TestClient(AdapterContract):
        open_driver = HttpxDriver

A driver makes one client of its library from a `Connection` and speaks to it in plain words. It
blocks, and many threads call it at once; `AsyncDriver` does so for a library that needs an event loop.
"""

from __future__ import annotations

import gc
import json
import logging
import socket
import threading
import traceback
import warnings
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import pytest
import trustme
from anyio.from_thread import start_blocking_portal

from ostiary.client.connection import Connection
from ostiary.errors import CredentialError, PluginFailed
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.http_server import HttpServer, Request, Response
from tests.support.plugins import PluginScript, exec_user
from tests.support.proxy import ConnectProxy

PODS = "/api/v1/namespaces/default/pods"
WATCH = PODS + "?watch=1"
CANARY = "canary-2f9c1e77"
T = TypeVar("T")
OpenDriver = Callable[[Connection], "Driver"]
IssueCertificate = Callable[[str], tuple[str, str]]


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes = b""


class Driver(ABC):
    """One client of the library under test. Paths are relative to the cluster's address."""

    refusal: type[Exception] | tuple[type[Exception], ...]
    """What the library raises when it does not trust the server's certificate."""
    unreachable: type[Exception] | tuple[type[Exception], ...]
    """What the library raises when nobody listens at the server's address."""
    follows_redirects: ClassVar[bool] = True
    sends_generators: ClassVar[bool] = True
    takes_headers: ClassVar[bool] = True
    """Whether a caller can add headers to one request."""
    reads_trust_late: ClassVar[bool] = True
    """Whether SSL_CERT_FILE and its like still count when the library is imported already."""

    @abstractmethod
    def __init__(self, connection: Connection) -> None: ...

    @abstractmethod
    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """GET, and follow redirects. An error status is a reply and not an exception."""

    @abstractmethod
    def post(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        """POST bytes, or a generator's bytes as they come."""

    @abstractmethod
    def watch(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """GET, giving each line of the answer as soon as it has arrived."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def shown(self) -> Iterable[object]:
        """The objects a user holds or may look into; none of them may show the token."""


class AsyncDriver(Driver):
    """A driver whose library lives in an event loop: implement the coroutines."""

    backend: ClassVar[str] = "asyncio"

    def __init__(self, connection: Connection) -> None:
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal(self.backend))
        self.run(self.open, connection)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await `function(*args)` in the driver's event loop."""
        return self._portal.call(function, *args)

    @abstractmethod
    async def open(self, connection: Connection) -> None: ...

    @abstractmethod
    async def get_async(self, path: str, headers: Mapping[str, str] | None) -> Reply: ...

    @abstractmethod
    async def post_async(self, path: str, body: bytes | Iterable[bytes]) -> Reply: ...

    @abstractmethod
    def watch_async(self, path: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[bytes]]]:
        """Gives a function that awaits the next line, and raises StopAsyncIteration after the last."""

    @abstractmethod
    async def close_async(self) -> None: ...

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.run(self.get_async, path, headers)

    def post(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        return self.run(self.post_async, path, body)

    @contextmanager
    def watch(self, path: str) -> Iterator[Iterator[bytes]]:
        # The portal opens and closes the context in one task, as some libraries require.
        with self._portal.wrap_async_context_manager(self.watch_async(path)) as next_line:
            yield self._lines(next_line)

    def _lines(self, next_line: Callable[[], Awaitable[bytes]]) -> Iterator[bytes]:
        async def line_or_end() -> bytes | None:
            try:
                return await next_line()
            except StopAsyncIteration:
                return None

        while (line := self.run(line_or_end)) is not None:
            yield line

    def close(self) -> None:
        with self._stack:
            self.run(self.close_async)


# --- the places a client may be sent to ---


def trust_everywhere(ca: trustme.CA, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make *ca* an authority for whatever looks at the usual environment variables."""
    bundle = folder / "trusted-by-this-machine.pem"
    ca.cert_pem.write_to_path(str(bundle))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(bundle))


def event(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "resourceVersion": "1"}
    return {"type": "ADDED", "object": {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}}


def at_once(count: int, call: Callable[[], T]) -> list[T]:
    """Call from *count* threads that start together."""
    start = threading.Barrier(count)

    def called() -> T:
        start.wait(30)
        return call()

    with ThreadPoolExecutor(count) as threads:
        return [future.result(60) for future in [threads.submit(called) for _ in range(count)]]


def impersonating(plugin: PluginScript) -> dict[str, Any]:
    return {
        **exec_user(plugin.path),
        "as": "jane",
        "as-uid": "uid-7",
        "as-groups": ["developers", "night shift"],
        "as-user-extra": {"reason": ["audit", "drill"]},
    }


def assert_nothing_of_ours(requests: Iterable[Request]) -> None:
    for request in requests:
        assert request.headers.get("Authorization") is None
        assert [name for name in request.headers if name.startswith("impersonate-")] == []
        assert request.certificate is None


def redirect_to(url: str) -> str:
    return "/api/v1/redirect?to=" + quote(url, safe="")


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class AdapterContract:
    open_driver: ClassVar[type[Driver]]

    # --- fixtures, for the tests of one library too ---

    @pytest.fixture
    def driver_for(self) -> Iterator[OpenDriver]:
        """Open a driver that is closed when the test ends."""
        with ExitStack() as stack:

            def open_driver(connection: Connection) -> Driver:
                return stack.enter_context(closing(self.open_driver(connection)))

            yield open_driver

    @pytest.fixture
    def driver(self, driver_for: OpenDriver, connect_to: Connect) -> Driver:
        """A driver for the test's API server and the user of the test's plugin."""
        return driver_for(connect_to())

    @pytest.fixture
    def plain_server(self) -> Iterator[HttpServer]:
        with HttpServer(Response(body={})).running() as server:
            yield server

    @pytest.fixture
    def proxy(self) -> Iterator[ConnectProxy]:
        with ConnectProxy().running() as server:
            yield server

    @pytest.fixture
    def elsewhere(self, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ApiServer]:
        """Another server over TLS, which the whole machine trusts."""
        trust_everywhere(ca, monkeypatch, tmp_path)
        with ApiServer(ca).running() as server:
            yield server

    # --- the token ---

    def test_every_request_carries_the_token_and_the_plugin_runs_once(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        """E10, E12, E47, F11."""
        api.rules.tokens = {"token-1"}
        assert [driver.get(PODS).status for _ in range(5)] == [200] * 5
        assert driver.post("/api/v1/echo", b"hello").status == 200
        assert [request.headers.get_list("Authorization") for request in api.requests] == [["Bearer token-1"]] * 6
        assert api.requests[-1].body == b"hello"
        assert plugin.runs == 1

    def test_nothing_is_dialled_and_no_plugin_runs_before_the_first_request(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        """E69, F12."""
        assert (api.connections, plugin.runs) == (0, 0)

    def test_sixty_four_first_requests_at_once_run_the_plugin_once(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        """E20."""
        api.rules.tokens = {"token-1"}
        replies = at_once(64, lambda: driver.get(PODS))
        assert [reply.status for reply in replies] == [200] * 64
        assert plugin.runs == 1

    def test_the_answer_reaches_the_caller_whole(self, driver: Driver) -> None:
        assert json.loads(driver.get(PODS).body)["kind"] == "PodList"

    def test_a_path_in_the_servers_address_is_kept(
        self, driver_for: OpenDriver, connect_to: Connect, api: ApiServer
    ) -> None:
        api.rules.tokens = {"token-1"}
        driver = driver_for(connect_to(server=api.url + "/k8s/clusters/c-1"))
        assert driver.get(PODS).status == 200
        assert api.requests[0].target == "/k8s/clusters/c-1" + PODS

    # --- 401 and 403 ---

    def test_a_401_refreshes_once_and_the_request_is_sent_again(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        """E1, E51, F13."""
        driver.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert driver.post("/api/v1/echo", b"x" * 1000).status == 200
        assert [request.body for request in api.requests[1:]] == [b"x" * 1000] * 2
        assert [request.headers.get_list("Authorization") for request in api.requests[1:]] == [
            ["Bearer token-1"],
            ["Bearer token-2"],
        ]
        assert plugin.runs == 2

    def test_a_token_that_changes_keeps_the_connection(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        driver.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert driver.get(PODS).status == 200
        assert api.statuses == [200, 401, 200]
        assert api.connections == 1

    def test_a_server_that_rejects_everything_is_asked_twice_and_no_more(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        api.rules.tokens = {"somebody-else"}
        assert driver.get(PODS).status == 401
        assert api.statuses == [401, 401]
        assert plugin.runs == 2

    def test_tokens_that_die_after_one_use_cost_one_run_per_request_and_never_a_401(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        """The outcome of a re-sent request counts: a token that the server took is no reason to pause."""
        plugin.before('sed -i "s/token-[0-9]*/token-$(grep -c . runs)/" answer')
        api.rules.single_use = {f"token-{number}" for number in range(1, 20)}
        assert [driver.get(PODS).status for _ in range(12)] == [200] * 12
        assert api.statuses == [200] + [401, 200] * 11
        assert plugin.runs == 12

    def test_sixteen_401s_at_once_run_the_plugin_once_and_all_succeed(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        """E20, E51."""
        driver.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        # All sixteen are at the server with the old token before the first of them is judged.
        api.barrier = threading.Barrier(16)
        replies = at_once(16, lambda: driver.get(PODS))
        assert [reply.status for reply in replies] == [200] * 16
        assert sorted(api.statuses) == [200] * 17 + [401] * 16
        assert plugin.runs == 2

    def test_a_body_that_cannot_be_sent_again_gets_its_401_and_the_next_request_succeeds(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        if not driver.sends_generators:
            pytest.skip("the library does not take a generator as the body")
        driver.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert driver.post("/api/v1/echo", (part for part in (b"one", b"two"))).status == 401
        assert plugin.runs == 2
        assert driver.post("/api/v1/echo", (part for part in (b"one", b"two"))).status == 200
        assert api.statuses == [200, 401, 200]
        assert api.requests[-1].body == b"onetwo"

    def test_without_retry_on_401_the_401_is_returned_and_the_next_request_succeeds(
        self, driver_for: OpenDriver, connect_to: Connect, api: ApiServer, plugin: PluginScript
    ) -> None:
        driver = driver_for(connect_to(retry_on_401=False))
        driver.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert driver.get(PODS).status == 401
        assert driver.get(PODS).status == 200
        assert api.statuses == [200, 401, 200]
        assert plugin.runs == 2

    def test_a_403_never_refreshes(self, driver: Driver, api: ApiServer, plugin: PluginScript) -> None:
        """E9."""
        assert driver.get("/api/v1/forbidden").status == 403
        assert driver.get("/api/v1/forbidden").status == 403
        assert api.statuses == [403, 403]
        assert plugin.runs == 1

    def test_a_request_that_is_signed_already_is_left_alone(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        """F24."""
        if not driver.takes_headers:
            pytest.skip("the library does not take headers for one request")
        api.rules.tokens = {"token-1"}
        assert driver.get(PODS, headers={"Authorization": "Bearer mine"}).status == 401
        assert [request.headers.get_list("Authorization") for request in api.requests] == [["Bearer mine"]]
        assert plugin.runs == 0

    # --- without a credential nothing is sent ---

    def test_a_plugin_that_fails_is_the_callers_error_and_nothing_is_sent(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        """E24."""
        plugin.exit(3)
        with pytest.raises(PluginFailed) as caught:
            driver.get(PODS)
        assert caught.value.exit_code == 3
        with pytest.raises(CredentialError):
            driver.post("/api/v1/echo", b"hello")
        with pytest.raises(CredentialError), driver.watch(WATCH):
            pass
        assert api.requests == []

    # --- impersonation ---

    def test_impersonation_goes_along_each_value_on_a_line_of_its_own(
        self, driver_for: OpenDriver, connect_to: Connect, api: ApiServer, plugin: PluginScript
    ) -> None:
        driver = driver_for(connect_to(user=impersonating(plugin)))
        driver.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        driver.get(PODS)
        assert api.statuses == [200, 401, 200]
        for received in api.requests:
            assert received.headers.get_list("Impersonate-User") == ["jane"]
            assert received.headers.get_list("Impersonate-Uid") == ["uid-7"]
            assert received.headers.get_list("Impersonate-Group") == ["developers", "night shift"]
            assert received.headers.get_list("Impersonate-Extra-Reason") == ["audit", "drill"]

    def test_a_name_outside_ascii_is_impersonated_in_utf8(
        self, driver_for: OpenDriver, connect_to: Connect, api: ApiServer, plugin: PluginScript
    ) -> None:
        """As by kubectl: another encoding would be another user."""
        driver = driver_for(connect_to(user={**exec_user(plugin.path), "as": "jané", "as-groups": ["日本"]}))
        driver.get(PODS)
        sent = [
            (api.requests[0].headers.get(name, "")).encode("latin-1")
            for name in ("Impersonate-User", "Impersonate-Group")
        ]
        assert sent == ["jané".encode(), "日本".encode()]

    def test_a_user_and_password_in_the_servers_address_sign_the_requests(
        self, driver_for: OpenDriver, connect_to: Connect, api: ApiServer
    ) -> None:
        driver = driver_for(connect_to(server=api.url.replace("https://", "https://u:p%20w@")))
        assert driver.get(PODS).status == 200
        assert api.requests[0].headers.get_list("Authorization") == ["Basic dTpwIHc="]

    def test_the_dot_that_ends_a_full_name_is_no_part_of_what_the_server_must_prove(
        self, driver_for: OpenDriver, connect_to: Connect, api: ApiServer
    ) -> None:
        driver = driver_for(connect_to(cluster={"tls-server-name": "localhost."}))
        assert driver.get(PODS).status == 200

    # --- client certificates ---

    def test_the_plugins_certificate_is_presented(
        self, driver: Driver, api: ApiServer, plugin: PluginScript, client_certificate: IssueCertificate
    ) -> None:
        """E11, E48."""
        certificate, key = client_certificate("alice")
        plugin.answer(certificate=certificate, key=key)
        api.rules.certificates = {"alice"}
        assert driver.get(PODS).status == 200
        assert (api.requests[0].certificate, api.requests[0].headers.get("Authorization")) == ("alice", None)

    def test_a_rotated_certificate_gets_new_connections_and_streams_in_flight_finish_on_the_old_one(
        self,
        driver_for: OpenDriver,
        connect_to: Connect,
        api: ApiServer,
        plugin: PluginScript,
        proxy: ConnectProxy,
        client_certificate: IssueCertificate,
    ) -> None:
        """E1, E46, F25."""
        first, second = client_certificate("first"), client_certificate("second")
        plugin.answer(certificate=first[0], key=first[1])
        api.rules.certificates = {"first"}
        driver = driver_for(connect_to(cluster={"proxy-url": proxy.url}))
        with driver.watch(WATCH) as lines:
            api.wait_for_watches(1)
            driver.get(PODS)
            plugin.answer(certificate=second[0], key=second[1])
            api.rules.certificates = {"second"}
            assert [driver.get(PODS).status for _ in range(2)] == [200, 200]
            assert [request.certificate for request in api.requests] == ["first", "first", "first", "second", "second"]
            assert api.connections == 3
            busy, idle, current = proxy.tunnels
            idle.wait_until_left()
            assert not busy.left.is_set()
            api.emit(event("late"))
            assert json.loads(next(lines))["object"]["metadata"]["name"] == "late"
            api.end_watches()
            assert list(lines) == []
        busy.wait_until_left()
        assert driver.get(PODS).status == 200
        assert not current.left.is_set()
        assert plugin.runs == 2

    # --- elsewhere ---

    def test_a_redirect_to_another_server_takes_nothing_along(
        self,
        driver_for: OpenDriver,
        connect_to: Connect,
        api: ApiServer,
        plugin: PluginScript,
        elsewhere: ApiServer,
        client_certificate: IssueCertificate,
    ) -> None:
        certificate, key = client_certificate("alice")
        plugin.answer(token="token-1", certificate=certificate, key=key)
        driver = driver_for(connect_to(user=impersonating(plugin)))
        with suppress(*_tuple(driver.refusal)):
            driver.get(redirect_to(elsewhere.url + PODS))
        assert api.statuses == [307]
        assert_nothing_of_ours(elsewhere.requests)
        if driver.follows_redirects and driver.reads_trust_late:
            assert elsewhere.statuses == [200]

    def test_a_redirect_away_from_tls_takes_nothing_along(
        self, driver_for: OpenDriver, connect_to: Connect, plugin: PluginScript, plain_server: HttpServer
    ) -> None:
        driver = driver_for(connect_to(user=impersonating(plugin)))
        driver.get(redirect_to(plain_server.url + PODS))
        assert_nothing_of_ours(plain_server.requests)
        assert len(plain_server.requests) == driver.follows_redirects

    def test_another_servers_401_is_none_of_our_business(
        self, driver: Driver, plugin: PluginScript, elsewhere: ApiServer
    ) -> None:
        """E9."""
        elsewhere.rules.tokens = {"token-1"}
        with suppress(*_tuple(driver.refusal)):
            assert driver.get(redirect_to(elsewhere.url + PODS)).status == (401 if driver.follows_redirects else 307)
        assert_nothing_of_ours(elsewhere.requests)
        assert plugin.runs == 1

    def test_a_redirect_within_the_server_is_signed_with_the_newest_token(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        if not driver.follows_redirects:
            pytest.skip("the library does not follow redirects")
        driver.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert driver.get(redirect_to(PODS)).status == 200
        assert api.statuses == [200, 401, 307, 200]
        tokens = ["token-1", "token-1", "token-2", "token-2"]
        assert [request.headers.get_list("Authorization") for request in api.requests] == [
            [f"Bearer {token}"] for token in tokens
        ]

    def test_a_server_without_tls_gets_no_credential(
        self, driver_for: OpenDriver, connect_to: Connect, plugin: PluginScript, plain_server: HttpServer
    ) -> None:
        assert driver_for(connect_to(server=plain_server.url)).get(PODS).status == 200
        assert_nothing_of_ours(plain_server.requests)
        assert plugin.runs == 0

    # --- trust ---

    def test_only_the_clusters_authority_is_trusted(
        self,
        driver_for: OpenDriver,
        connect_to: Connect,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        stranger = trustme.CA()
        trust_everywhere(stranger, monkeypatch, tmp_path)
        with ApiServer(stranger).running() as impostor:
            driver = driver_for(connect_to(server=impostor.url))
            with pytest.raises(driver.refusal):
                driver.get(PODS)
            assert impostor.requests == []

    def test_insecure_skip_tls_verify_takes_any_certificate(self, driver_for: OpenDriver, connect_to: Connect) -> None:
        with ApiServer(trustme.CA()).running() as stranger:
            stranger.rules.tokens = {"token-1"}
            cluster = {"insecure-skip-tls-verify": True, "certificate-authority-data": None}
            assert driver_for(connect_to(server=stranger.url, cluster=cluster)).get(PODS).status == 200

    def test_tls_server_name_is_the_name_that_the_certificate_must_have(
        self, driver_for: OpenDriver, connect_to: Connect, ca: trustme.CA
    ) -> None:
        with ApiServer(ca, hostname="api.cluster.test").running() as api:
            server = f"https://localhost:{api.port}"
            driver = driver_for(connect_to(server=server))
            with pytest.raises(driver.refusal):
                driver.get(PODS)
            driver = driver_for(connect_to(server=server, cluster={"tls-server-name": "api.cluster.test"}))
            assert driver.get(PODS).status == 200

    # --- proxies ---

    def test_the_proxy_of_the_kubeconfig_is_used_whatever_the_environment_says(
        self,
        driver_for: OpenDriver,
        connect_to: Connect,
        api: ApiServer,
        proxy: ConnectProxy,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("NO_PROXY", "*")
        api.rules.tokens = {"token-1"}
        driver = driver_for(connect_to(cluster={"proxy-url": proxy.url}))
        assert [driver.get(PODS).status for _ in range(3)] == [200] * 3
        assert proxy.targets == [f"localhost:{api.port}"]

    def test_the_proxy_is_told_its_password_and_the_server_is_not(
        self, driver_for: OpenDriver, connect_to: Connect, api: ApiServer, proxy: ConnectProxy
    ) -> None:
        url = proxy.url.replace("://", "://porter:sesame%21@")
        assert driver_for(connect_to(cluster={"proxy-url": url})).get(PODS).status == 200
        expected = "Basic " + b64encode(b"porter:sesame!").decode()
        assert [tunnel.headers.get("proxy-authorization") for tunnel in proxy.tunnels] == [expected]
        assert api.requests[0].headers.get("Proxy-Authorization") is None

    def test_the_proxy_of_the_environment_is_used_for_a_server_that_is_far_away(
        self,
        driver_for: OpenDriver,
        connect_to: Connect,
        ca: trustme.CA,
        proxy: ConnectProxy,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with ApiServer(ca, hostname="api.cluster.test").running() as far:
            far.rules.tokens = {"token-1"}
            assert driver_for(connect_to(server=far.url)).get(PODS).status == 200
            assert proxy.targets == [f"api.cluster.test:{far.port}"]

    def test_the_proxy_of_the_environment_is_not_used_where_go_would_not(
        self, driver_for: OpenDriver, connect_to: Connect, proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert driver_for(connect_to()).get(PODS).status == 200
        assert proxy.targets == []

    # --- streams ---

    def test_events_of_a_watch_arrive_one_by_one(self, driver: Driver, api: ApiServer) -> None:
        with driver.watch(WATCH) as lines:
            api.wait_for_watches(1)
            for name in ("a", "b", "c"):
                # The next event does not exist before the last has been read: nothing can be waiting for more.
                api.emit(event(name))
                assert json.loads(next(lines)) == event(name)
            api.end_watches()
            assert list(lines) == []

    def test_a_watch_that_is_rejected_is_refreshed_like_any_request(
        self, driver: Driver, api: ApiServer, plugin: PluginScript
    ) -> None:
        driver.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        with driver.watch(WATCH) as lines:
            api.wait_for_watches(1)
            api.emit(event("a"))
            assert json.loads(next(lines)) == event("a")
            api.end_watches()
            assert list(lines) == []
        assert plugin.runs == 2

    def test_a_watch_that_is_left_early_frees_its_connection(
        self, driver_for: OpenDriver, connect_to: Connect, api: ApiServer, proxy: ConnectProxy
    ) -> None:
        driver = driver_for(connect_to(cluster={"proxy-url": proxy.url}))
        with driver.watch(WATCH) as lines:
            api.wait_for_watches(1)
            api.emit(event("a"))
            next(lines)
        proxy.tunnels[0].wait_until_left()
        assert driver.get(PODS).status == 200

    # --- the end ---

    @pytest.mark.filterwarnings("error::ResourceWarning")
    def test_closing_the_client_closes_its_connections(
        self, connect_to: Connect, api: ApiServer, proxy: ConnectProxy
    ) -> None:
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()  # what earlier tests left
        api.barrier = threading.Barrier(4)
        with closing(self.open_driver(connect_to(cluster={"proxy-url": proxy.url}))) as driver:
            at_once(4, partial(driver.get, PODS))
        assert len(proxy.tunnels) == 4
        for tunnel in proxy.tunnels:
            tunnel.wait_until_left()
        # A socket that was forgotten instead of closed complains when it is collected.
        del driver
        gc.collect()

    # --- secrets ---

    def test_the_token_is_in_no_repr_and_no_log(
        self, driver: Driver, api: ApiServer, plugin: PluginScript, caplog: pytest.LogCaptureFixture
    ) -> None:
        """E53."""
        caplog.set_level(logging.DEBUG)
        plugin.answer(token=CANARY)
        driver.get(PODS)
        driver.get("/api/v1/forbidden")
        api.rules.tokens = {CANARY + "-2"}
        plugin.answer(token=CANARY + "-2")
        driver.get(PODS)
        assert api.requests[-1].headers.get("Authorization") == f"Bearer {CANARY}-2"
        assert CANARY not in caplog.text
        for shown in driver.shown():
            assert CANARY not in repr(shown)
            assert CANARY not in str(shown)

    def test_the_token_is_in_no_error(
        self, driver_for: OpenDriver, connect_to: Connect, plugin: PluginScript, caplog: pytest.LogCaptureFixture
    ) -> None:
        """E53."""
        caplog.set_level(logging.DEBUG)
        plugin.answer(token=CANARY)
        driver = driver_for(connect_to(server=f"https://localhost:{unused_port()}"))
        with pytest.raises(driver.unreachable) as caught:
            driver.get(PODS)
        assert plugin.runs == 1
        assert CANARY not in "".join(traceback.format_exception(caught.value))
        assert CANARY not in repr(caught.value)
        assert CANARY not in caplog.text


def _tuple(errors: type[Exception] | tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    return errors if isinstance(errors, tuple) else (errors,)
