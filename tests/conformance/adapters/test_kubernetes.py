"""The adapter for the official client: the contract of all adapters, its watches, and its websockets."""

from __future__ import annotations

import logging
import socket
import threading
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import kubernetes.client
import pytest
import trustme
import websocket
from kubernetes.client import ApiException, CoreV1Api, V1ObjectMeta, V1Pod
from kubernetes.client.exceptions import UnauthorizedException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ForbiddenError
from kubernetes.stream import portforward, stream
from kubernetes.watch import Watch
from urllib3.exceptions import MaxRetryError

from ostiary.client.adapters.kubernetes import ApiClient, api_client
from ostiary.client.connection import Connection
from ostiary.errors import CredentialError, PluginFailed, TransportError
from tests.conformance.adapters.contract import (
    CANARY,
    PODS,
    AdapterContract,
    Driver,
    IssueCertificate,
    Reply,
    event,
    impersonating,
)
from tests.conformance.adapters.websocket_server import FORWARDED_PORT, WebsocketServer
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript
from tests.support.proxy import ConnectProxy

OpenClient = Callable[..., ApiClient]


class KubernetesDriver(Driver):
    refusal = (MaxRetryError, ApiException)
    unreachable = MaxRetryError
    sends_generators = False

    def __init__(self, connection: Connection) -> None:
        self.client = api_client(connection)
        self._last: list[Any] = []

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self._reply("GET", path, headers or {})

    def post(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        return self._reply("POST", path, {"Content-Type": "application/octet-stream"}, body)

    def _reply(self, method: str, path: str, headers: Mapping[str, str], body: Any = None) -> Reply:
        request = self.client.param_serialize(method, path, header_params=dict(headers), auth_settings=["BearerToken"])
        response = self.client.call_api(*request[:3], body)
        self._last = [response]
        return Reply(response.status, response.read())

    @contextmanager
    def watch(self, path: str) -> Iterator[Iterator[bytes]]:
        request = self.client.param_serialize("GET", path, auth_settings=["BearerToken"])
        response = self.client.call_api(*request).response
        try:
            yield iter(response)
        finally:
            response.close()

    def close(self) -> None:
        self.client.close()  # type: ignore[no-untyped-call]

    def shown(self) -> Iterable[object]:
        configuration = self.client.configuration
        return [self.client, vars(self.client), configuration, vars(configuration), *self._last]


class TestApiClient(AdapterContract):
    open_driver = KubernetesDriver

    # --- what people call ---

    def test_a_call_of_the_typed_api_is_signed_and_survives_a_401(
        self, driver: KubernetesDriver, api: ApiServer, plugin: PluginScript
    ) -> None:
        core = CoreV1Api(driver.client)
        assert len(core.list_namespaced_pod("default").items) == 5
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        pod = V1Pod(metadata=V1ObjectMeta(name="new"))
        core.create_namespaced_pod("default", pod)
        assert api.statuses == [200, 401, 200]
        assert api.requests[1].body == api.requests[2].body != b""

    def test_a_refusal_is_an_exception_of_the_library(
        self, driver: KubernetesDriver, api: ApiServer, plugin: PluginScript
    ) -> None:
        api.rules.tokens = {"somebody-else"}
        with pytest.raises(UnauthorizedException):
            CoreV1Api(driver.client).list_namespaced_pod("default")
        api.rules.tokens = set()
        with pytest.raises(ForbiddenError):
            dynamic(driver.client).request("get", "/api/v1/forbidden")

    def test_a_plugin_that_fails_reaches_the_caller_of_every_kind_of_call(
        self, driver: KubernetesDriver, api: ApiServer, plugin: PluginScript
    ) -> None:
        plugin.exit(3)
        core = CoreV1Api(driver.client)
        with pytest.raises(PluginFailed):
            core.list_namespaced_pod("default")
        pending: Any = core.list_namespaced_pod("default", async_req=True)
        with pytest.raises(CredentialError):
            pending.get(30)
        with pytest.raises(CredentialError):
            next(watched_pods(driver.client))
        assert api.requests == []

    def test_watch_gives_one_event_after_the_other(
        self, driver: KubernetesDriver, api: ApiServer, plugin: PluginScript
    ) -> None:
        driver.get(PODS)
        api.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        with ThreadPoolExecutor(1) as thread:
            events = watched_pods(driver.client, timeout_seconds=60)
            for name in ("a", "b"):
                following = thread.submit(next, events)
                api.wait_for_watches(1)
                api.emit(event(name))
                assert following.result(30)["object"].metadata.name == name
            api.end_watches()
            assert list(events) == []

    def test_the_dynamic_client_is_signed_too(self, driver: KubernetesDriver, api: ApiServer) -> None:
        api.rules.tokens = {"token-1"}
        assert dynamic(driver.client).request("get", PODS).kind == "PodList"

    def test_a_proxy_of_the_environment_that_the_library_could_not_use_does_not_matter(
        self, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
        with closing(KubernetesDriver(connect_to())) as driver:
            assert driver.get(PODS).status == 200

    def test_options_are_those_of_urllib3(self, connect_to: Connect, api: ApiServer) -> None:
        client = connect_to().kubernetes(headers={"X-Test": "yes"}, retries=False)
        with client:
            client.rest_client.pool_manager.request("GET", PODS)
        assert api.requests[0].headers.get("X-Test") == "yes"


class TestStreams:
    @pytest.fixture
    def server(self, ca: trustme.CA) -> Iterator[WebsocketServer]:
        with WebsocketServer(ca).running() as server:
            yield server

    @pytest.fixture
    def open_client(self, connect_to: Connect, server: WebsocketServer) -> OpenClient:
        def open_client(**options: Any) -> ApiClient:
            return api_client(connect_to(**{"server": server.url, **options}))

        return open_client

    def test_exec_carries_the_token_and_gives_the_output(
        self, open_client: OpenClient, server: WebsocketServer, plugin: PluginScript
    ) -> None:
        server.rules.tokens = {"token-1"}
        assert run(open_client()) == "hello\n"
        (received,) = server.requests
        assert received.target == "/api/v1/namespaces/default/pods/web/exec?command=echo&command=hello&stdout=true"
        assert received.headers.get_list("Authorization") == ["Bearer token-1"]
        assert received.headers.get_list("Sec-WebSocket-Protocol") == ["v5.channel.k8s.io,v4.channel.k8s.io"]
        assert plugin.runs == 1

    def test_exec_impersonates(self, open_client: OpenClient, server: WebsocketServer, plugin: PluginScript) -> None:
        run(open_client(user=impersonating(plugin)))
        assert server.requests[0].headers.get_list("Impersonate-User") == ["jane"]
        assert server.requests[0].headers.get_list("Impersonate-Group") == ["developers", "night shift"]

    def test_exec_presents_the_certificate_and_the_new_one_when_it_is_rotated(
        self,
        open_client: OpenClient,
        server: WebsocketServer,
        plugin: PluginScript,
        client_certificate: IssueCertificate,
    ) -> None:
        first, second = client_certificate("first"), client_certificate("second")
        plugin.answer(certificate=first[0], key=first[1])
        server.rules.certificates = {"first"}
        client = open_client()
        assert run(client) == "hello\n"
        plugin.answer(certificate=second[0], key=second[1])
        server.rules.certificates = {"second"}
        assert run(client) == "hello\n"
        assert [request.certificate for request in server.requests] == ["first", "first", "second"]
        assert {request.headers.get("Authorization") for request in server.requests} == {None}

    def test_a_401_at_the_handshake_refreshes_once_and_dials_again(
        self, open_client: OpenClient, server: WebsocketServer, plugin: PluginScript
    ) -> None:
        client = open_client()
        run(client)
        server.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        assert run(client) == "hello\n"
        assert server.statuses == [101, 401, 101]
        assert plugin.runs == 2

    def test_a_handshake_that_is_rejected_twice_is_the_exception_of_the_library(
        self, open_client: OpenClient, server: WebsocketServer, plugin: PluginScript
    ) -> None:
        server.rules.tokens = {"somebody-else"}
        with pytest.raises(ApiException, match="401"):
            run(open_client())
        assert server.statuses == [401, 401]
        assert plugin.runs == 2

    def test_without_retry_on_401_the_next_exec_succeeds(
        self, open_client: OpenClient, server: WebsocketServer, plugin: PluginScript
    ) -> None:
        client = open_client(retry_on_401=False)
        run(client)
        server.rules.tokens = {"token-2"}
        plugin.answer(token="token-2")
        with pytest.raises(ApiException, match="401"):
            run(client)
        assert run(client) == "hello\n"

    def test_a_plugin_that_fails_is_the_callers_error_and_nothing_is_dialled(
        self, open_client: OpenClient, server: WebsocketServer, plugin: PluginScript
    ) -> None:
        plugin.exit(3)
        with pytest.raises(PluginFailed):
            run(open_client())
        assert server.requests == []

    def test_a_header_of_the_callers_own_is_used_and_its_401_not_acted_on(
        self, open_client: OpenClient, server: WebsocketServer, plugin: PluginScript
    ) -> None:
        server.rules.tokens = {"token-1"}
        client = open_client()
        client.default_headers["Authorization"] = "Bearer mine"
        with pytest.raises(ApiException, match="401"):
            run(client)
        assert [request.headers.get_list("Authorization") for request in server.requests] == [["Bearer mine"]]
        assert plugin.runs == 0

    def test_a_redirect_is_not_followed(self, open_client: OpenClient, server: WebsocketServer, ca: trustme.CA) -> None:
        with WebsocketServer(ca).running() as elsewhere:
            server.redirect_to = elsewhere.url.replace("https:", "wss:")
            with pytest.raises(ApiException):
                run(open_client())
            assert elsewhere.requests == []

    def test_port_forward_is_signed(self, open_client: OpenClient, server: WebsocketServer) -> None:
        connect = CoreV1Api(open_client()).connect_get_namespaced_pod_portforward
        with closing(portforward(connect, "web", "default", ports=str(FORWARDED_PORT))) as forward:
            assert forward.socket(FORWARDED_PORT).recv(5, socket.MSG_WAITALL) == b"hello"
        assert server.requests[0].headers.get_list("Authorization") == ["Bearer token-1"]

    # --- trust and proxies ---

    def test_only_the_clusters_authority_is_trusted(self, open_client: OpenClient) -> None:
        with WebsocketServer(trustme.CA()).running() as impostor:
            with pytest.raises(ApiException, match="CERTIFICATE_VERIFY_FAILED"):
                run(open_client(server=impostor.url))
            assert impostor.requests == []

    def test_insecure_skip_tls_verify_takes_any_certificate(self, open_client: OpenClient) -> None:
        with WebsocketServer(trustme.CA()).running() as stranger:
            cluster = {"insecure-skip-tls-verify": True, "certificate-authority-data": None}
            assert run(open_client(server=stranger.url, cluster=cluster)) == "hello\n"

    def test_tls_server_name_is_the_name_that_the_certificate_must_have(
        self, open_client: OpenClient, ca: trustme.CA
    ) -> None:
        with WebsocketServer(ca, hostname="api.cluster.test").running() as server:
            address = f"https://localhost:{server.port}"
            with pytest.raises(ApiException, match="CERTIFICATE_VERIFY_FAILED"):
                run(open_client(server=address))
            assert run(open_client(server=address, cluster={"tls-server-name": "api.cluster.test"})) == "hello\n"

    def test_the_proxy_of_the_kubeconfig_is_used_whatever_the_environment_says(
        self, open_client: OpenClient, server: WebsocketServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NO_PROXY", "*")
        with ConnectProxy().running() as proxy:
            url = proxy.url.replace("://", "://porter:sesame%21@")
            assert run(open_client(cluster={"proxy-url": url})) == "hello\n"
            (tunnel,) = proxy.tunnels
            assert tunnel.target == f"localhost:{server.port}"
            assert tunnel.headers["proxy-authorization"] == "Basic " + b64encode(b"porter:sesame!").decode()

    def test_the_proxy_of_the_environment_is_not_used_where_go_would_not(
        self, open_client: OpenClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ConnectProxy().running() as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            assert run(open_client()) == "hello\n"
            assert proxy.targets == []

    def test_a_proxy_that_websockets_do_not_know_is_refused(
        self, open_client: OpenClient, server: WebsocketServer
    ) -> None:
        with pytest.raises(TransportError) as caught:
            run(open_client(cluster={"proxy-url": "https://porter:sesame@proxy.test"}))
        assert caught.value.code == "proxy-invalid"
        assert "sesame" not in str(caught.value)
        assert server.requests == []

    # --- others ---

    def test_a_stream_of_one_thread_leaves_the_calls_of_the_others_alone(
        self, open_client: OpenClient, server: WebsocketServer
    ) -> None:
        client = open_client()
        server.gate = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            streaming = thread.submit(run, client)
            assert server.opened.wait(30)
            answer = client.call_api("GET", server.url + "/version", {})
            server.gate.set()
            assert streaming.result(30) == "hello\n"
        assert (answer.status, answer.read()) == (200, b"{}")
        assert [request.headers.get("Upgrade") for request in server.requests] == ["websocket", None]

    def test_after_a_stream_the_thread_calls_as_before(self, open_client: OpenClient, server: WebsocketServer) -> None:
        client = open_client()
        run(client)
        assert client.call_api("GET", server.url + "/version", {}).status == 200

    def test_clients_that_are_not_ours_dial_as_ever(
        self, open_client: OpenClient, server: WebsocketServer, ca: trustme.CA
    ) -> None:
        run(open_client())
        with ca.cert_pem.tempfile() as authority:
            configuration = kubernetes.client.Configuration(
                host=server.url, api_key={"authorization": "Bearer theirs"}, ssl_ca_cert=authority
            )
            assert run(kubernetes.client.ApiClient(configuration)) == "hello\n"
        assert server.requests[-1].headers.get_list("Authorization") == ["Bearer theirs"]

    def test_the_token_is_in_no_error_and_no_log(
        self,
        open_client: OpenClient,
        server: WebsocketServer,
        plugin: PluginScript,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        caplog.set_level(logging.DEBUG)
        websocket.enableTrace(True)
        plugin.answer(token=CANARY)
        client = open_client()
        run(client)
        server.rules.tokens = {"somebody-else"}
        with pytest.raises(ApiException) as caught:
            run(client)
        assert [request.headers.get("Authorization") for request in server.requests] == [f"Bearer {CANARY}"] * 3
        shown = "".join(traceback.format_exception(caught.value)) + repr(client) + repr(vars(client))
        assert CANARY not in shown + caplog.text + "".join(capfd.readouterr())


def run(client: kubernetes.client.ApiClient) -> str:
    """``kubectl exec web -- echo hello``, and what it printed."""
    try:
        exec_in = CoreV1Api(client).connect_get_namespaced_pod_exec
        return str(stream(exec_in, "web", "default", command=["echo", "hello"], stdout=True))
    finally:
        client.close()  # type: ignore[no-untyped-call]


def dynamic(client: ApiClient) -> Any:
    # The test's server has no API groups to discover.
    return DynamicClient(client, discoverer=lambda *_: None)  # type: ignore[no-untyped-call]


def watched_pods(client: ApiClient, **options: Any) -> Iterator[Any]:
    list_pods = CoreV1Api(client).list_namespaced_pod
    events: Iterator[Any] = Watch().stream(list_pods, "default", **options)  # type: ignore[no-untyped-call]
    return events
