"""The real kubectl and ostiary, given the same kubeconfig and the same plugin, do the same."""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostiary.client.connection import connect
from ostiary.errors import ConfigurationError, CredentialError
from tests.support.apiserver import ApiServer
from tests.support.kubectl import find_kubectl, newest_exec_version
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig

KUBECTL = find_kubectl()
pytestmark = pytest.mark.needs("kubectl")

Issue = Callable[[str], tuple[str, str]]


@pytest.fixture(scope="module")
def version() -> str:
    return newest_exec_version()


def kubectl(kubeconfig: Path, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(KUBECTL), "--kubeconfig", str(kubeconfig), "--cache-dir", str(kubeconfig.parent / "cache"), *args],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
        **options,
    )


def ostiary_get(kubeconfig: Path) -> int:
    with connect(kubeconfig).httpx() as client:
        return client.get("/version").status_code


EXTENSION = {"name": "client.authentication.k8s.io/exec", "extension": {"z": "<&>", "a": [1, None, {"ü": True}]}}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "with the cluster": {"exec": {"provideClusterInfo": True}},
    "with an extension": {"exec": {"provideClusterInfo": True}, "cluster": {"extensions": [EXTENSION]}},
    "with an extension that it is not told of": {"cluster": {"extensions": [EXTENSION]}},
    "with another server name": {"exec": {"provideClusterInfo": True}, "cluster": {"tls-server-name": "127.0.0.1"}},
    "with the authority in a file": {"exec": {"provideClusterInfo": True}, "file": True},
    "insecure": {"exec": {"provideClusterInfo": True}, "insecure": True},
    "uncompressed": {"exec": {"provideClusterInfo": True}, "cluster": {"disable-compression": True}},
    "a path in the address": {"exec": {"provideClusterInfo": True}, "path": "/k8s/clusters/c-1"},
    "if available": {"exec": {"mode": "IfAvailable"}},
    "arguments and variables": {"exec": {"args": ["a", "b c"], "env": [{"name": "X", "value": "y"}]}},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_plugin_is_told_the_same_and_run_as_often(
    api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path, version: str, case: dict[str, Any]
) -> None:
    """E28, E30, E31, E34."""
    api.rules.tokens = {"token-1"}
    plugin.answer(token="token-1", version=version)
    cluster: dict[str, Any] = {"certificate-authority-data": ca_data, **case.get("cluster", {})}
    if case.get("file"):
        (tmp_path / "ca.pem").write_bytes(b64decode(cluster.pop("certificate-authority-data")))
        cluster["certificate-authority"] = "ca.pem"
    if case.get("insecure"):
        cluster = {"insecure-skip-tls-verify": True}
    kubeconfig = write_kubeconfig(
        tmp_path / "config",
        server=api.url + case.get("path", ""),
        user=exec_user(plugin.path, version=version, **case.get("exec", {})),
        cluster=cluster,
    )
    done = kubectl(kubeconfig, "get", "--raw", "/version")
    assert done.returncode == 0, done.stderr
    theirs = plugin.infos
    assert ostiary_get(kubeconfig) == 200
    assert plugin.infos == theirs * 2


def test_a_rejected_token_makes_both_run_the_plugin_twice(
    api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path, version: str
) -> None:
    api.rules.tokens = {"other"}
    plugin.answer(token="token-1", version=version)
    user = exec_user(plugin.path, version=version)
    kubeconfig = write_kubeconfig(
        tmp_path / "config", server=api.url, user=user, cluster={"certificate-authority-data": ca_data}
    )
    assert "must be logged in" in kubectl(kubeconfig, "get", "--raw", "/version").stderr
    theirs = plugin.runs
    assert ostiary_get(kubeconfig) == 401
    assert (theirs, plugin.runs - theirs) == (2, 2)


def test_a_client_certificate_signs_both_in(
    api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path, version: str, client_certificate: Issue
) -> None:
    api.rules.certificates = {"dev"}
    chain, key = client_certificate("dev")
    plugin.answer(certificate=chain, key=key, version=version)
    user = exec_user(plugin.path, version=version)
    kubeconfig = write_kubeconfig(
        tmp_path / "config", server=api.url, user=user, cluster={"certificate-authority-data": ca_data}
    )
    assert kubectl(kubeconfig, "get", "--raw", "/version").returncode == 0
    assert ostiary_get(kubeconfig) == 200
    assert [request.certificate for request in api.requests] == ["dev", "dev"]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda plugin: plugin.exit(3),
        lambda plugin: plugin.print_exactly(b"not json"),
        lambda plugin: plugin.print_exactly(b'{"apiVersion":"client.authentication.k8s.io/v9","status":{"token":"x"}}'),
        lambda plugin: plugin.print_exactly(b""),
        lambda plugin: plugin.answer(),
        lambda plugin: plugin.answer(token="x", expires_at="2030-01-01T00:00:00"),
        lambda plugin: plugin.answer(token="x", key="lonely"),
        lambda plugin: plugin.path.unlink(),
    ],
    ids=["exit code", "not JSON", "other version", "nothing", "no token", "no zone", "half a pair", "missing"],
)
def test_what_kubectl_refuses_we_refuse_and_neither_sends_a_request(
    api: ApiServer,
    plugin: PluginScript,
    ca_data: str,
    tmp_path: Path,
    version: str,
    break_it: Callable[[PluginScript], object],
) -> None:
    break_it(plugin)
    user = exec_user(plugin.path, version=version)
    kubeconfig = write_kubeconfig(
        tmp_path / "config", server=api.url, user=user, cluster={"certificate-authority-data": ca_data}
    )
    assert kubectl(kubeconfig, "get", "--raw", "/version").returncode != 0
    with pytest.raises(CredentialError):
        ostiary_get(kubeconfig)
    assert api.requests == []


@pytest.mark.parametrize(
    "user",
    [
        {"exec": {"command": "x"}},
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "", "interactiveMode": "Never"}},
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "interactiveMode": "Sometimes"}},
        {"token": "t", "username": "u", "password": "p"},
        {"client-certificate-data": "eA=="},
    ],
    ids=["no apiVersion", "no command", "odd mode", "two methods", "no key"],
)
def test_what_kubectl_finds_invalid_is_invalid(
    api: ApiServer, ca_data: str, tmp_path: Path, user: dict[str, Any]
) -> None:
    kubeconfig = write_kubeconfig(
        tmp_path / "config", server=api.url, user=user, cluster={"certificate-authority-data": ca_data}
    )
    assert kubectl(kubeconfig, "get", "--raw", "/version").returncode != 0
    with pytest.raises(ConfigurationError):
        connect(kubeconfig)


def test_a_list_of_kubeconfigs_is_merged_alike(
    api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.answer(token="token-1", version=version)
    (tmp_path / "sub").mkdir()
    parts: list[tuple[str, dict[str, Any]]] = [
        ("first", {"current-context": "", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]}),
        ("missing", {}),
        (
            "sub/second",
            {"current-context": "c", "users": [{"name": "u", "user": exec_user("../plugin/plugin", version=version)}]},
        ),
        ("third", {"current-context": "other", "users": [{"name": "u", "user": {"token": "wrong"}}]}),
        (
            "fourth",
            {"clusters": [{"name": "k", "cluster": {"server": api.url, "certificate-authority-data": ca_data}}]},
        ),
    ]
    for name, content in parts:
        if content:
            (tmp_path / name).write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **content}))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(str(tmp_path / name) for name, _ in parts))
    done = subprocess.run(
        [str(KUBECTL), "get", "--raw", "/version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )
    assert done.returncode == 0, done.stderr
    with connect().httpx() as client:
        assert client.get("/version").status_code == 200
    assert [request.headers.get("Authorization") for request in api.requests] == ["Bearer token-1"] * 2
