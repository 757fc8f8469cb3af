"""The adapter for requests: the contract of all adapters, and what is requests' own."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
import trustme
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from ostiary.client.adapters.requests import ClusterAdapter
from ostiary.client.connection import Connection
from tests.conformance.adapters.contract import PODS, AdapterContract, Driver, Reply, redirect_to
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.http_server import HttpServer
from tests.support.plugins import PluginScript
from tests.support.proxy import ConnectProxy


class RequestsDriver(Driver):
    refusal = requests.exceptions.SSLError
    unreachable = requests.ConnectionError

    def __init__(self, connection: Connection) -> None:
        self.session = connection.requests()
        self._last: list[requests.Response] = []

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self._reply(self.session.get(path, headers=headers))

    def post(self, path: str, body: bytes | Iterable[bytes]) -> Reply:
        return self._reply(self.session.post(path, data=body))

    def _reply(self, response: requests.Response) -> Reply:
        self._last = [response]
        return Reply(response.status_code, response.content)

    @contextmanager
    def watch(self, path: str) -> Iterator[Iterator[bytes]]:
        with self.session.get(path, stream=True) as response:
            # One byte at a time: requests waits until a chunk of its own size is full.
            yield response.iter_lines(chunk_size=1)

    def close(self) -> None:
        self.session.close()

    def shown(self) -> Iterable[object]:
        for response in self._last:
            yield from (response, response.request, response.request.headers, vars(response.request))
        yield from (self.session, vars(self.session), self.session.headers, *self.session.adapters.values())


class TestSession(AdapterContract):
    open_driver = RequestsDriver

    def test_netrc_does_not_sign_in_place_of_the_kubeconfig(self, connect_to: Connect, api: ApiServer) -> None:
        Path.home().joinpath(".netrc").write_text("default login nobody password nothing\n")
        with connect_to().requests() as session:
            session.get(PODS)
            session.get(redirect_to(PODS))
        assert [request.headers.get_list("Authorization") for request in api.requests] == [["Bearer token-1"]] * 3

    def test_a_redirect_from_elsewhere_to_the_cluster_is_signed_by_us_alone(
        self, connect_to: Connect, api: ApiServer, elsewhere: ApiServer
    ) -> None:
        Path.home().joinpath(".netrc").write_text("default login nobody password nothing\n")
        with connect_to().requests() as session:
            url = elsewhere.url + redirect_to(api.url + PODS)
            assert session.get(url, headers={"Authorization": "Bearer theirs"}, auth=lambda request: request).ok
        assert [request.headers.get_list("Authorization") for request in elsewhere.requests] == [["Bearer theirs"]]
        assert [request.headers.get_list("Authorization") for request in api.requests] == [["Bearer token-1"]]

    def test_a_session_or_request_with_an_auth_of_its_own_is_left_alone(
        self, connect_to: Connect, api: ApiServer, plugin: PluginScript
    ) -> None:
        with connect_to().requests() as session:
            session.get(PODS, auth=("jane", "secret"))
            session.auth = ("jane", "secret")
            session.get(PODS)
        basic = "Basic " + b64encode(b"jane:secret").decode()
        assert [request.headers.get_list("Authorization") for request in api.requests] == [[basic], [basic]]
        assert plugin.runs == 0

    def test_verify_cert_and_proxies_of_the_caller_do_not_reach_the_cluster(
        self, connect_to: Connect, api: ApiServer, ca: trustme.CA, proxy: ConnectProxy, tmp_path: Path
    ) -> None:
        mine = tmp_path / "mine.pem"
        ca.issue_cert("mine@example.test", common_name="mine").private_key_and_cert_chain_pem.write_to_path(str(mine))
        with ApiServer(trustme.CA()).running() as impostor:
            with connect_to(server=impostor.url).requests() as session:
                session.verify = False
                with pytest.raises(requests.exceptions.SSLError):
                    session.get(PODS, verify=False)
            assert impostor.requests == []
        with connect_to().requests() as session:
            session.get(PODS, cert=str(mine), proxies={"https": proxy.url}, verify=str(mine))
        assert (api.requests[0].certificate, proxy.targets) == (None, [])

    def test_a_prepared_request_is_signed_when_it_is_sent_and_does_not_learn_the_token(
        self, connect_to: Connect, api: ApiServer
    ) -> None:
        with connect_to().requests() as session:
            request = requests.Request("GET", PODS)
            prepared = session.prepare_request(request)
            session.send(prepared)
            session.send(prepared)
        assert request.url == PODS
        assert "Authorization" not in prepared.headers
        assert [request.headers.get_list("Authorization") for request in api.requests] == [["Bearer token-1"]] * 2

    def test_a_file_is_sent_again_whole(
        self, connect_to: Connect, api: ApiServer, plugin: PluginScript, tmp_path: Path
    ) -> None:
        path = tmp_path / "upload"
        path.write_bytes(b"from a file")
        with connect_to().requests() as session, path.open("rb") as file:
            session.get(PODS)
            api.rules.tokens = {"token-2"}
            plugin.answer(token="token-2")
            assert session.post("/api/v1/echo", data=file).status_code == 200
        assert [request.body for request in api.requests[1:]] == [b"from a file"] * 2

    def test_options_are_those_of_the_requests_adapter(self, connect_to: Connect, api: ApiServer) -> None:
        retries = Retry(total=2, status_forcelist=[503], raise_on_status=False)
        with connect_to().requests(max_retries=retries) as session:
            assert session.get("/api/v1/broken").status_code == 503
        assert api.statuses == [503] * 3

    @pytest.mark.parametrize(("disabled", "encoding"), [(True, "identity"), (False, "gzip, deflate")])
    def test_compression_is_asked_for_unless_the_kubeconfig_says_no(
        self, connect_to: Connect, api: ApiServer, disabled: bool, encoding: str
    ) -> None:
        with connect_to(cluster={"disable-compression": disabled}).requests() as session:
            session.get(PODS)
        assert (api.requests[0].headers.get("Accept-Encoding", "")).startswith(encoding)

    @pytest.mark.parametrize(
        ("server", "url", "is_server"),
        [
            ("https://api.test", "https://API.test:443/version", True),
            ("https://api.test:443", "https://api.test/version", True),
            ("https://api.test:6443", "https://api.test:64430/version", False),
            ("https://api.test", "https://api.test.elsewhere.test/version", False),
            ("https://api.test", "https://api.test@elsewhere.test/version", False),
            ("https://api.test", "http://api.test/version", False),
        ],
    )
    def test_only_the_servers_own_address_has_our_adapter(
        self, connect_to: Connect, server: str, url: str, is_server: bool
    ) -> None:
        with connect_to(server=server).requests() as session:
            assert isinstance(session.get_adapter(url), ClusterAdapter) is is_server

    @pytest.mark.parametrize("url", ["https://api.test:port/", "https://[api.test/", "api/v1/pods"])
    def test_what_is_no_address_is_refused_by_requests_itself(
        self, connect_to: Connect, plugin: PluginScript, url: str
    ) -> None:
        with connect_to().requests() as session, pytest.raises(requests.RequestException):
            session.get(url)
        assert plugin.runs == 0

    def test_an_adapter_that_the_user_mounts_for_everything_leaves_the_cluster_ours(self, connect_to: Connect) -> None:
        connection = connect_to()
        with connection.requests() as session:
            session.mount("https://", HTTPAdapter(max_retries=5))
            assert isinstance(session.get_adapter(connection.server + "/api"), ClusterAdapter)

    def test_a_server_without_tls_is_reached_through_its_proxy_too(
        self, connect_to: Connect, plain_server: HttpServer
    ) -> None:
        # The "proxy" is the plain server itself, which sees what a proxy is asked.
        connection = connect_to(server="http://api.test:8080", cluster={"proxy-url": plain_server.url})
        with connection.requests() as session:
            assert session.get(PODS).status_code == 200
        assert plain_server.requests[0].target == "http://api.test:8080" + PODS
