"""`ostiary.exec_info`: from KUBERNETES_EXEC_INFO to the cluster, with whatever HTTP client a plugin has."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
import trustme
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from ostiary import exec_info
from ostiary.errors import ConfigurationError, TransportError
from ostiary.wire.client_authentication import V1, V1ALPHA1, V1BETA1, ClusterInfo, ExecCredentialSpec, encode_info
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.plugins import exec_user
from tests.support.proxy import ConnectProxy
from tests.support.walkthrough import WriteFile, steps

Ask = Callable[[exec_info.ClusterEndpoint], str]


def info_text(server: str, ca: trustme.CA, **cluster: Any) -> str:
    fields = {"server": server, "certificate_authority_data": ca.cert_pem.bytes(), **cluster}
    return encode_info(ExecCredentialSpec(V1, False, ClusterInfo(**fields)))


def with_the_standard_library(endpoint: exec_info.ClusterEndpoint) -> str:
    request = urllib.request.Request(endpoint.base_url + "/version", headers=dict(endpoint.headers))
    proxies = urllib.request.ProxyHandler({"https": endpoint.proxy} if endpoint.proxy else None)
    opener = urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=endpoint.ssl_context))
    with opener.open(request, timeout=30) as answer:
        return str(json.load(answer)["gitVersion"])


def with_urllib3(endpoint: exec_info.ClusterEndpoint) -> str:
    options: dict[str, Any] = {"ssl_context": endpoint.ssl_context, "headers": endpoint.headers}
    manager = urllib3.ProxyManager(endpoint.proxy, **options) if endpoint.proxy else urllib3.PoolManager(**options)
    with manager:
        return str(manager.request("GET", endpoint.base_url + "/version").json()["gitVersion"])


def with_httpx2(endpoint: exec_info.ClusterEndpoint) -> str:
    with httpx2.Client(
        base_url=endpoint.base_url, verify=endpoint.ssl_context, proxy=endpoint.proxy, headers=endpoint.headers
    ) as client:
        return str(client.get("/version").json()["gitVersion"])


def with_aiohttp(endpoint: exec_info.ClusterEndpoint) -> str:
    async def ask() -> str:
        async with (
            aiohttp.ClientSession(headers=endpoint.headers) as session,
            session.get(endpoint.base_url + "/version", ssl=endpoint.ssl_context, proxy=endpoint.proxy) as answer,
        ):
            return str((await answer.json())["gitVersion"])

    return asyncio.run(ask())


clients = pytest.mark.parametrize("ask", [with_the_standard_library, with_urllib3, with_httpx2, with_aiohttp])


@clients
def test_any_client_reaches_a_cluster_by_its_authority_name_and_proxy(ask: Ask, ca: trustme.CA) -> None:
    """E40."""
    with ApiServer(ca, hostname="internal.test").running() as api, ConnectProxy().running() as proxy:
        server = f"https://localhost:{api.port}"
        text = info_text(server, ca, tls_server_name="internal.test", proxy_url=proxy.url, disable_compression=True)
        assert ask(exec_info.load(text).endpoint()) == "v1.32.0"
        assert proxy.targets == [f"localhost:{api.port}"]
        assert api.requests[0].headers.get("Accept-Encoding") == "identity"
        assert api.requests[0].headers.get("Authorization") is None


@clients
def test_no_other_name_and_no_other_authority_will_do(ask: Ask, ca: trustme.CA, api: ApiServer) -> None:
    for text in (info_text(api.url, ca, tls_server_name="internal.test"), info_text(api.url, trustme.CA())):
        with pytest.raises(Exception, match=r"(?i)certificate"):
            ask(exec_info.load(text.encode()).endpoint())
    assert api.requests == []


def test_the_environment_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch, ca: trustme.CA) -> None:
    monkeypatch.setenv("KUBERNETES_EXEC_INFO", info_text("https://c:6443/prefix", ca))
    endpoint = exec_info.load_from_env().endpoint()
    assert (endpoint.base_url, endpoint.proxy, endpoint.headers) == ("https://c:6443/prefix", None, {})


@pytest.mark.parametrize("version", [V1, V1BETA1, V1ALPHA1])
def test_without_cluster_info_only_the_endpoint_is_missing(version: str) -> None:
    """As the KEP has it: the object is read all the same; and as client-go has it: asking for more is an error."""
    info = exec_info.load(encode_info(ExecCredentialSpec(version, True)))
    assert (info.api_version, info.interactive, info.cluster) == (version, True, None)
    with pytest.raises(ConfigurationError) as caught:
        info.endpoint()
    assert caught.value.code == "exec-info-without-cluster"


def test_a_proxy_is_not_shown_and_a_broken_authority_is_told(ca: trustme.CA) -> None:
    endpoint = exec_info.load(info_text("https://c", ca, proxy_url="http://u:canary-pass@proxy:1")).endpoint()
    assert "canary-pass" not in repr(endpoint)
    with pytest.raises(TransportError, match="authority"):
        exec_info.load(info_text("https://c", ca, certificate_authority_data=b"no pem")).endpoint()


@given(st.text() | st.binary())
def test_whatever_is_not_an_exec_credential_is_one_clear_error(data: str | bytes) -> None:
    with pytest.raises(ConfigurationError) as caught:
        exec_info.load(data)
    assert caught.value.code == "exec-info-missing"


def test_the_plugin_of_the_page_answers_a_client(
    connect_to: Connect, api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[4] / "docs/how-to/write-an-exec-plugin.md").read_text()
    (step,) = [step for step in steps(page) if isinstance(step, WriteFile) and step.name == "who-is-there.py"]
    program = tmp_path / "who-is-there"
    program.write_text(f"#!{sys.executable}\n{step.text}")
    program.chmod(0o755)
    with connect_to(user=exec_user(program, provideClusterInfo=True)).httpx() as client:
        assert client.get("/api").status_code == 200
    assert [request.headers.get("Authorization") for request in api.requests] == [None, "Bearer v1.32.0"]
