"""From a kubeconfig to a connection: addresses, trust, impersonation, and which credential signs."""

from __future__ import annotations

import json
import logging
import ssl
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary import kubeconfig
from ostiary.client.authenticator import Authenticator
from ostiary.client.connection import Connection, connect
from ostiary.client.retry_on_401 import authorization_header
from ostiary.client.static_credentials import FileSource, FixedSource
from ostiary.errors import ConfigurationError, PluginRefused, TransportError
from ostiary.kubeconfig import Overrides
from ostiary.model import Credential
from ostiary_gateway.testing import FakeClock
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig

Connect = Callable[..., Connection]
Issue = Callable[[str], tuple[str, str]]
CANARY = "c4n4ry0c4n4ry0c4n4ry"


def signed_by(connection: Connection) -> str | None:
    assert connection.source is not None
    found = connection.source.current()
    assert isinstance(found, Credential)
    return authorization_header(found)


def data(text: str) -> str:
    return b64encode(text.encode()).decode()


# --- which credential signs: client-go's precedence, 3C "favors static" ---


def test_nothing_runs_before_the_first_request(connect_to: Connect, plugin: PluginScript) -> None:
    """F12."""
    assert isinstance(connect_to().source, Authenticator)
    assert plugin.runs == 0


def test_a_static_token_beats_the_plugin(connect_to: Connect, plugin: PluginScript) -> None:
    """E27, D1, F1."""
    connection = connect_to(user={**exec_user(plugin.path), "token": "static"})
    assert isinstance(connection.source, FixedSource)
    assert signed_by(connection) == "Bearer static"


def test_a_token_file_beats_the_plugin_and_the_token(connect_to: Connect, plugin: PluginScript, tmp_path: Path) -> None:
    """E27, F1."""
    (tmp_path / "token").write_text("from-file")
    connection = connect_to(user={**exec_user(plugin.path), "token": "static", "tokenFile": str(tmp_path / "token")})
    assert isinstance(connection.source, FileSource)
    assert signed_by(connection) == "Bearer from-file"


def test_a_username_beats_the_plugin(connect_to: Connect, plugin: PluginScript) -> None:
    """E27, D1, F1."""
    connection = connect_to(user={**exec_user(plugin.path), "username": "ü", "password": "p:w"})
    assert signed_by(connection) == "Basic " + b64encode("ü:p:w".encode()).decode()


def test_a_certificate_with_its_key_beats_the_plugin(
    connect_to: Connect, plugin: PluginScript, client_certificate: Issue
) -> None:
    """E27, D1, F1."""
    certificate, key = client_certificate("dev")
    user = {"client-certificate-data": data(certificate), "client-key-data": data(key)}
    connection = connect_to(user={**exec_user(plugin.path), **user})
    assert isinstance(connection.source, FixedSource)
    assert connection.source.current().certificate is not None


def test_a_password_alone_does_not_beat_the_plugin(connect_to: Connect, plugin: PluginScript) -> None:
    connection = connect_to(user={**exec_user(plugin.path), "password": "p"})
    assert isinstance(connection.source, Authenticator)


def test_a_user_without_credentials_is_anonymous(connect_to: Connect) -> None:
    """E65."""
    assert connect_to(user={}).source is None


def test_a_certificate_file_with_the_key_in_the_kubeconfig_is_a_pair(
    connect_to: Connect, client_certificate: Issue, tmp_path: Path
) -> None:
    """F1."""
    certificate, key = client_certificate("dev")
    (tmp_path / "crt").write_text(certificate)
    connection = connect_to(user={"client-certificate": str(tmp_path / "crt"), "client-key-data": data(key)})
    assert connection.source is not None
    assert connection.source.latest is not None
    assert connection.source.latest.certificate is not None


def test_a_pair_that_does_not_match_is_told_at_once(connect_to: Connect, client_certificate: Issue) -> None:
    user = {
        "client-certificate-data": data(client_certificate("a")[0]),
        "client-key-data": data(client_certificate("b")[1]),
    }
    with pytest.raises(ConfigurationError, match="does not belong"):
        connect_to(user=user)


def test_no_credential_goes_to_a_plain_http_server_and_that_is_said(
    connect_to: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ostiary"):
        connection = connect_to(server="http://plain.test:8080")
    assert connection.source is None
    assert connection.ssl_context() is None
    assert "not https" in caplog.text


# --- policy ---


def test_the_policy_of_the_kuberc_is_obeyed(connect_to: Connect, plugin: PluginScript) -> None:
    """E61."""
    (Path.home() / ".kube").mkdir()
    (Path.home() / ".kube" / "kuberc").write_text(
        "apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\ncredentialPluginPolicy: DenyAll\n"
    )
    source = connect_to().source
    assert isinstance(source, Authenticator)
    with pytest.raises(PluginRefused):
        source.get()
    assert plugin.runs == 0


# --- addresses ---


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://c.test:6443", "https://c.test:6443"),
        ("https://c.test/k8s/clusters/c-1", "https://c.test/k8s/clusters/c-1"),
        ("https://c.test/prefix/?q=1#f", "https://c.test/prefix"),
        ("c.test:6443", "http://c.test:6443"),
        ("c.test", "http://c.test"),
        ("https://c.test//a/../b/", "https://c.test/b"),
        ("HTTPS://c.test.:6443", "https://c.test.:6443"),
        ("https://user:c4n4ry@c.test", "https://c.test"),
        ("https://[::1]:6443", "https://[::1]:6443"),
    ],
)
def test_addresses_keep_their_path_and_lose_query_and_fragment(connect_to: Connect, server: str, expected: str) -> None:
    assert connect_to(server=server).server == expected


def test_an_address_without_scheme_is_http_unless_something_says_tls(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", server="c.test:8080", user={})
    assert connect(path).server == "http://c.test:8080"


@pytest.mark.parametrize("server", ["https://", "ftp://c.test", "https://c.test:port", "https://c.test:99999"])
def test_what_is_no_address_is_refused(connect_to: Connect, server: str) -> None:
    with pytest.raises(TransportError, match="not an address"):
        connect_to(server=server)


@pytest.mark.parametrize(
    ("url", "is_server"),
    [
        ("https://c.test/api", True),
        ("https://C.TEST:443/api", True),
        ("https://c.test:6443/", False),
        ("http://c.test/", False),
        ("https://c.test.evil.test/", False),
        ("https://evil.test/c.test", False),
        ("https://user@c.test/", True),
    ],
)
def test_only_the_cluster_itself_is_signed_for(connect_to: Connect, url: str, is_server: bool) -> None:
    assert connect_to(server="https://c.test").is_server_url(url) is is_server


def test_impersonation_becomes_headers_with_one_line_per_group_and_escaped_keys(connect_to: Connect) -> None:
    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"acme.test/Scope %": ["x", "y"]},
    }
    assert list(connect_to(user=user).impersonation) == [
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-acme.test%2FScope%20%25", "x"),
        ("Impersonate-Extra-acme.test%2FScope%20%25", "y"),
    ]


@pytest.mark.parametrize("token", [CANARY + "\nX: y", CANARY + " ", "\t" + CANARY, CANARY + "é"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_quoted(connect_to: Connect, token: str) -> None:
    with pytest.raises(ConfigurationError, match="no header can carry") as caught:
        connect_to(user={"token": token})
    assert CANARY not in str(caught.value)


def test_impersonation_cannot_bring_another_header_along(connect_to: Connect) -> None:
    with pytest.raises(ConfigurationError, match="no header can carry"):
        connect_to(user={"token": "t", "as": "jane", "as-groups": ["a\r\nX-Remote-User: root"]})


# --- trust ---


def test_the_context_is_the_same_object_until_the_certificate_changes(
    connect_to: Connect, plugin: PluginScript, client_certificate: Issue, clock: FakeClock
) -> None:
    connection = connect_to()
    assert isinstance(connection.source, Authenticator)
    contexts = [connection.ssl_context()]
    for name in ("one", "one", "two"):
        certificate, key = client_certificate(name)
        plugin.answer(token="t", certificate=certificate, key=key)
        if connection.source.latest is None:
            connection.source.get()
        contexts += [connection.ssl_context(), connection.ssl_context()]
    assert contexts[1] is contexts[2] is contexts[3]
    assert contexts[0] is not contexts[1]


def test_a_certificate_authority_file_is_read_again_after_five_minutes(
    connect_to: Connect, tmp_path: Path, clock: FakeClock
) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(trustme.CA().cert_pem.bytes())
    connection = connect_to(cluster={"certificate-authority-data": None, "certificate-authority": str(file)})
    first = connection.ssl_context()
    file.write_bytes(trustme.CA().cert_pem.bytes())
    assert connection.ssl_context() is first
    clock.advance(301)
    second = connection.ssl_context()
    assert second is not first
    file.unlink()
    clock.advance(301)
    assert connection.ssl_context() is second


def test_insecure_and_an_authority_contradict_each_other(connect_to: Connect) -> None:
    connection = connect_to(cluster={"insecure-skip-tls-verify": True})
    with pytest.raises(TransportError, match="contradict"):
        connection.ssl_context()


def test_insecure_alone_verifies_nothing(connect_to: Connect) -> None:
    connection = connect_to(cluster={"insecure-skip-tls-verify": True, "certificate-authority-data": None})
    context = connection.ssl_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_NONE
    assert not connection.verifies


def test_an_authority_that_is_no_certificate_is_told(connect_to: Connect) -> None:
    with pytest.raises(TransportError, match="not a PEM certificate"):
        connect_to(cluster={"certificate-authority-data": data("garbage")}).ssl_context()


# --- what a plugin is told of the cluster (TestConfigToExecCluster) ---


def told(connect_to: Connect, plugin: PluginScript, **cluster: Any) -> dict[str, Any]:
    connection = connect_to(user=exec_user(plugin.path, provideClusterInfo=True), cluster=cluster)
    assert isinstance(connection.source, Authenticator)
    connection.source.get()
    info: dict[str, Any] = json.loads(plugin.infos[-1])["spec"]["cluster"]
    return info


def test_ca_data_from_memory(connect_to: Connect, plugin: PluginScript, ca_data: str) -> None:
    """E30, E31."""
    info = told(connect_to, plugin, **{"tls-server-name": "name", "disable-compression": True})
    assert info["certificate-authority-data"] == ca_data
    assert info["tls-server-name"] == "name"
    assert info["disable-compression"] is True
    assert info["config"] is None


def test_ca_data_from_file(
    connect_to: Connect, plugin: PluginScript, ca: trustme.CA, ca_data: str, tmp_path: Path
) -> None:
    """E31."""
    (tmp_path / "ca").write_bytes(ca.cert_pem.bytes())
    info = told(
        connect_to, plugin, **{"certificate-authority-data": None, "certificate-authority": str(tmp_path / "ca")}
    )
    assert info["certificate-authority-data"] == ca_data


def test_a_ca_file_that_vanished_after_validation_is_told_when_the_plugin_is_made(tmp_path: Path) -> None:
    selection = kubeconfig.Selection(
        "test",
        kubeconfig.Cluster("c", "https://c.test", certificate_authority=str(tmp_path / "none")),
        kubeconfig.User(
            "u", exec=kubeconfig.ExecConfig("client.authentication.k8s.io/v1", "x", provide_cluster_info=True)
        ),
    )
    with pytest.raises(ConfigurationError, match="failed to load CA bundle for execProvider"):
        Connection(selection)


def test_only_a_proxy_of_the_kubeconfig_is_told(
    connect_to: Connect, plugin: PluginScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E30."""
    monkeypatch.setenv("HTTPS_PROXY", "http://env.test:1")
    assert "proxy-url" not in told(connect_to, plugin)
    assert told(connect_to, plugin, **{"proxy-url": "http://kube.test:2"})["proxy-url"] == "http://kube.test:2"


def test_the_extension_is_handed_over_whole(connect_to: Connect, plugin: PluginScript) -> None:
    """E34."""
    extension = {"z": [1, {"b": None}], "a": "<x>"}
    info = told(connect_to, plugin, extensions=[{"name": "client.authentication.k8s.io/exec", "extension": extension}])
    assert info["config"] == extension


def test_the_told_cluster_is_the_one_that_is_talked_to(
    connect_to: Connect, plugin: PluginScript, api: ApiServer
) -> None:
    """E33."""
    overrides = Overrides(server=api.url.replace("localhost", "127.0.0.1"), tls_server_name="localhost")
    user = exec_user(plugin.path, provideClusterInfo=True)
    with connect_to(user=user, server="https://in-the-file.test", overrides=overrides).httpx() as client:
        assert client.get("/version").status_code == 200
    cluster = json.loads(plugin.infos[-1])["spec"]["cluster"]
    assert cluster["server"] == overrides.server
    assert cluster["tls-server-name"] == "localhost"


def test_exec_can_be_taken_out_of_the_kubeconfig_and_put_back(
    connect_to: Connect, plugin: PluginScript, api: ApiServer
) -> None:
    """E65, E66."""
    for user, sent in (
        (exec_user(plugin.path), "Bearer token-1"),
        ({"token": "static"}, "Bearer static"),
        ({}, None),
        (exec_user(plugin.path), "Bearer token-1"),
    ):
        before = plugin.runs
        with connect_to(user=user).httpx() as client:
            assert client.get("/version").status_code == 200
        assert api.requests[-1].headers.get("Authorization") == sent
        assert plugin.runs == before or "exec" in user


# --- nothing leaks ---


def test_no_secret_is_in_any_repr(connect_to: Connect, plugin: PluginScript) -> None:
    """E53, E64."""
    user = exec_user(plugin.path, args=[CANARY], env=[{"name": "X", "value": CANARY}])
    connection = connect_to(user=user, cluster={"proxy-url": f"http://u:{CANARY}@proxy.test"})
    shown = repr((connection, connection.selection, connection.source, vars(connection)))
    assert CANARY not in shown.replace(connection.proxy or "", "")
