"""What a plugin's function is given, and the HTTP client in it, against a real API server."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import pytest
import trustme

from ostiary.errors import ConfigurationError, OstiaryError, TransportError
from ostiary.sdk import ExecInfo
from ostiary.sdk.exec_info import load_from_env
from ostiary.wire import client_authentication as wire
from ostiary.wire.client_authentication import V1, V1BETA1, ClusterInfo, encode_info
from tests.support.apiserver import ApiServer
from tests.support.proxy import ConnectProxy

CANARY = "c4n4ry-c4n4ry-c4n4ry"


def info_for(api: ApiServer, ca: trustme.CA, **cluster: Any) -> ExecInfo:
    fields = {"server": api.url, "certificate_authority_data": ca.cert_pem.bytes(), **cluster}
    return ExecInfo(V1, False, ClusterInfo(**fields))


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_the_info_is_read_from_the_environment(version: str) -> None:
    """TestLoadExecCredential: happy. E37."""
    cluster = ClusterInfo("https://c", config={"audience": "x"})
    info = load_from_env({"KUBERNETES_EXEC_INFO": encode_info(wire.ExecCredentialSpec(version, True, cluster))})
    assert (info.api_version, info.interactive, info.cluster) == (version, True, cluster)
    assert info.config == {"audience": "x"}


def test_without_a_cluster_there_is_no_config() -> None:
    """TestLoadExecCredential: nil config. E38."""
    assert ExecInfo(V1, False).config is None
    assert ExecInfo(V1, False, ClusterInfo("https://c")).config is None


@pytest.mark.parametrize("environ", [{}, {"KUBERNETES_EXEC_INFO": ""}, {"KUBERNETES_EXEC_INFO": "bad data"}])
def test_a_missing_or_broken_info_has_its_code(environ: dict[str, str]) -> None:
    """TestLoadExecCredential: bad data. E37."""
    with pytest.raises(ConfigurationError) as caught:
        load_from_env(environ)
    assert caught.value.code == "exec-info-missing"
    assert "ostiary exec check" in str(caught.value.hint)


def test_the_http_client_trusts_the_clusters_authority_and_signs_nothing(api: ApiServer, ca: trustme.CA) -> None:
    """E39."""
    with info_for(api, ca).http() as client:
        assert client.get("/version").json()["gitVersion"] == "v1.32.0"
    assert api.requests[0].headers.get("Authorization") is None
    assert api.requests[0].certificate is None


def test_the_async_client_does_the_same(api: ApiServer, ca: trustme.CA) -> None:
    async def version() -> int:
        async with info_for(api, ca).http_async() as client:
            return (await client.get("/version")).status_code

    assert asyncio.run(version()) == 200


def test_another_authority_is_not_trusted(api: ApiServer) -> None:
    with info_for(api, trustme.CA()).http() as client, pytest.raises(httpx.ConnectError):
        client.get("/version")
    assert api.requests == []


def test_verification_can_be_skipped_as_the_kubeconfig_says(api: ApiServer, ca: trustme.CA) -> None:
    info = info_for(api, ca, certificate_authority_data=b"", insecure_skip_tls_verify=True)
    with info.http() as client:
        assert client.get("/version").status_code == 200


def test_the_tls_server_name_stands_for_the_host(ca: trustme.CA) -> None:
    """E39."""
    with ApiServer(ca, hostname="internal.test").running() as api:
        server = f"https://localhost:{api.port}"
        with info_for(api, ca, server=server).http() as client, pytest.raises(httpx.ConnectError):
            client.get("/version")
        with info_for(api, ca, server=server, tls_server_name="internal.test").http() as client:
            assert client.get("/version").status_code == 200


def test_the_clusters_proxy_is_used_and_beats_the_environments(
    api: ApiServer, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E39."""
    with ConnectProxy().running() as proxy, ConnectProxy().running() as other:
        monkeypatch.setenv("HTTPS_PROXY", other.url)
        with info_for(api, ca, proxy_url=proxy.url).http() as client:
            assert client.get("/version").status_code == 200
        assert proxy.targets == [f"localhost:{api.port}"]
        assert other.targets == []
        with info_for(api, ca).http() as client:
            assert client.get("/version").status_code == 200
        assert other.targets == [f"localhost:{api.port}"]


@pytest.mark.parametrize(("disabled", "said"), [(True, "identity"), (False, "gzip")])
def test_compression_is_asked_for_unless_it_is_disabled(
    api: ApiServer, ca: trustme.CA, disabled: bool, said: str
) -> None:
    with info_for(api, ca, disable_compression=disabled).http() as client:
        client.get("/version")
    assert said in str(api.requests[0].headers.get("Accept-Encoding"))


def test_options_are_passed_on_and_a_path_in_the_servers_address_is_kept(api: ApiServer, ca: trustme.CA) -> None:
    info = info_for(api, ca, server=f"{api.url}/clusters/a")
    with info.http(headers={"X-Mine": "1"}, timeout=20) as client:
        client.get("/version")
        assert client.timeout == httpx.Timeout(20)
    assert api.requests[0].target == "/clusters/a/version"
    assert api.requests[0].headers.get("X-Mine") == "1"


@pytest.mark.parametrize("cluster", [None, ClusterInfo("")])
def test_without_a_cluster_there_is_no_client_and_the_error_says_why(cluster: ClusterInfo | None) -> None:
    """TestLoadExecCredential: nil cluster. E38."""
    with pytest.raises(ConfigurationError) as caught:
        ExecInfo(V1, False, cluster).http()
    assert caught.value.code == "exec-info-without-cluster"
    assert "provideClusterInfo: true" in str(caught.value.hint)


@pytest.mark.parametrize("proxy", ["ftp://x", "http://", f"http://u:{CANARY}@[", "proxy:3128"])
def test_a_proxy_that_is_no_address_is_refused_and_not_quoted(proxy: str) -> None:
    """TestLoadExecCredential: invalid cluster"""
    with pytest.raises(TransportError) as caught:
        ExecInfo(V1, False, ClusterInfo("https://c", proxy_url=proxy)).http()
    assert caught.value.code == "proxy-invalid"
    assert CANARY not in str(caught.value)


def test_an_authority_together_with_skipped_verification_is_refused(ca: trustme.CA) -> None:
    cluster = ClusterInfo("https://c", insecure_skip_tls_verify=True, certificate_authority_data=ca.cert_pem.bytes())
    with pytest.raises(OstiaryError, match="contradict"):
        ExecInfo(V1, False, cluster).http()


def test_httpx_is_asked_for_by_its_name_when_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.setattr("ostiary.sdk.exec_info.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"ostiary\[httpx\]"):
        ExecInfo(V1, False, ClusterInfo("https://c")).http()
