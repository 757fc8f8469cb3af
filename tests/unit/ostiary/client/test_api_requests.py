"""Single requests with the standard library: signed, retried after a 401, bounded, and never redirected."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
import trustme

from ostiary import RequestToSign
from ostiary.client.api_requests import ApiRequests
from ostiary.client.connection import Connection
from ostiary.errors import PluginFailed, ProviderError, TransportError
from tests.support.apiserver import ApiServer
from tests.support.http_server import HttpServer, Response
from tests.support.plugins import PluginScript

Connect = Callable[..., Connection]
CANARY = "c4n4ry0c4n4ry0c4n4ry"


def test_a_request_is_signed_with_the_credential_of_the_kubeconfig(connect_to: Connect, api: ApiServer) -> None:
    reply = ApiRequests(connect_to(user={"token": CANARY})).send("GET", "/version")
    assert reply.status == 200
    assert b"gitVersion" in reply.body
    assert api.requests[0].headers.get("Authorization") == f"Bearer {CANARY}"
    assert "v1.32.0" not in repr(reply)


def test_a_body_is_sent_as_json(connect_to: Connect, api: ApiServer) -> None:
    ApiRequests(connect_to()).send("POST", "/api", b"{}")
    (received,) = api.requests
    assert (received.method, received.body, received.headers.get("Content-Type")) == ("POST", b"{}", "application/json")


def test_a_signer_sees_the_request_that_is_sent(connect_to: Connect, api: ApiServer) -> None:
    class Signer:
        def sign(self, request: RequestToSign) -> dict[str, str]:
            shown.append(request)
            return {"X-Signature": "s1gn3d"}

    shown: list[RequestToSign] = []
    requests = ApiRequests(connect_to(signer=Signer()))
    for method, body in (("POST", b'{"kind": "Pod"}'), ("GET", None)):
        requests.send(method, "/api", body)
        request, received = shown[-1], api.requests[-1]
        assert (request.method, request.url, request.body) == (method, f"{api.url}/api", body or b"")
        assert (received.body, received.headers.get("X-Signature")) == (body or b"", "s1gn3d")
        assert {name: received.headers.get(name) for name, _ in request.headers} == dict(request.headers)


def test_a_401_has_the_credential_replaced_and_the_request_sent_again(
    connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    api.rules.tokens = {"token-2"}
    requests = ApiRequests(connect_to())
    plugin.before("if [ $(wc -l < runs) -gt 1 ]; then sed -i s/token-1/token-2/ answer; fi\n")
    assert requests.send("GET", "/version").status == 200
    assert (api.statuses, plugin.runs) == ([401, 200], 2)


def test_a_client_certificate_is_presented(
    connect_to: Connect, api: ApiServer, client_certificate: Callable[[str], tuple[str, str]], tmp_path: Any
) -> None:
    certificate, key = client_certificate("node")
    for name, content in (("tls.crt", certificate), ("tls.key", key)):
        (tmp_path / name).write_text(content)
    files = {"client-certificate": str(tmp_path / "tls.crt"), "client-key": str(tmp_path / "tls.key")}
    ApiRequests(connect_to(user=files)).send("GET", "/version")
    assert api.requests[0].certificate == "node"


def test_impersonation_goes_along_and_several_groups_are_refused_in_words(connect_to: Connect, api: ApiServer) -> None:
    one = connect_to(user={"token": "t", "as": "jane", "as-groups": ["dev"]})
    ApiRequests(one).send("GET", "/version")
    assert (api.requests[0].headers.get("Impersonate-User"), api.requests[0].headers.get("Impersonate-Group")) == (
        "jane",
        "dev",
    )
    two = connect_to(user={"token": "t", "as": "jane", "as-groups": ["dev", "ops"]})
    with pytest.raises(TransportError, match="cannot be used here"):
        ApiRequests(two).send("GET", "/version")
    assert len(api.requests) == 1


def test_a_failing_plugin_is_a_credential_error(connect_to: Connect, plugin: PluginScript) -> None:
    plugin.exit(3)
    with pytest.raises(PluginFailed):
        ApiRequests(connect_to()).send("GET", "/version")


def test_nobody_there_is_an_outage_that_names_the_server_and_not_the_token(connect_to: Connect) -> None:
    requests = ApiRequests(connect_to(server="https://localhost:1", user={"token": CANARY}))
    with pytest.raises(ProviderError) as raised:
        requests.send("GET", "/version")
    assert (raised.value.code, raised.value.where) == ("api-server-unreachable", "https://localhost:1")
    assert CANARY not in str(raised.value)
    assert raised.value.__context__ is None, "the exception below holds the request, and that the token"


def test_a_server_of_another_authority_is_not_asked(connect_to: Connect, api: ApiServer) -> None:
    other = b64encode(trustme.CA().cert_pem.bytes()).decode()
    connection = connect_to(cluster={"certificate-authority-data": other})
    with pytest.raises(ProviderError, match="unreachable") as raised:
        ApiRequests(connection).send("GET", "/version")
    assert "certificate cannot be verified" in (raised.value.cause or "")
    assert api.requests == []


def test_a_socks_proxy_is_refused_in_words(connect_to: Connect, api: ApiServer) -> None:
    requests = ApiRequests(connect_to(cluster={"proxy-url": "socks5://127.0.0.1:1"}))
    with pytest.raises(TransportError) as raised:
        requests.send("GET", "/version")
    assert raised.value.code == "proxy-invalid"
    assert api.requests == []


def test_a_redirect_is_an_answer_and_is_not_followed(connect_to: Connect) -> None:
    with HttpServer(Response(302, headers={"Location": "/elsewhere"})).running() as server:
        assert ApiRequests(connect_to(server=server.url)).send("GET", "/redirect").status == 302
        assert len(server.requests) == 1


def test_an_answer_that_is_larger_than_allowed_counts_as_none(connect_to: Connect) -> None:
    with HttpServer(Response(body=b"x" * 100)).running() as server:
        reply = ApiRequests(connect_to(server=server.url), largest=99).send("GET", "/large")
    assert (reply.status, reply.body) == (200, b"")
