"""The cases of Kubernetes' own integration test for exec plugins, over real TLS, with real plugins.

"calls" counts rest_client_exec_plugin_call_total, "policy" the policy counter, as that test does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from ostiary.client.connection import Connection
from ostiary.client.exec.policy import AllowAll, Allowlist, DenyAll, PluginPolicy
from ostiary.client.metrics import PrometheusMetrics
from ostiary.errors import CredentialError
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript, exec_user

Connect = Callable[..., Connection]
Issue = Callable[[str], tuple[str, str]]
PODS = "/api/v1/namespaces/default/pods"
GOOD, BAD = "good", "bad"


@dataclass
class Measured:
    registry: CollectorRegistry
    metrics: PrometheusMetrics

    def total(self, name: str) -> dict[tuple[str, ...], float]:
        return {
            tuple(sample.labels.values()): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == name and sample.value
        }

    @property
    def calls(self) -> dict[tuple[str, ...], float]:
        return self.total("rest_client_exec_plugin_call_total")

    @property
    def policy(self) -> dict[tuple[str, ...], float]:
        return self.total("rest_client_exec_plugin_policy_call_total")


@pytest.fixture
def measured() -> Measured:
    registry = CollectorRegistry()
    return Measured(registry, PrometheusMetrics(registry))


@pytest.fixture(params=["v1", "v1beta1"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def answer(plugin: PluginScript, issue: Issue, version: str, token: str | None, certificate: str | None) -> None:
    chain, key = issue(certificate) if certificate else (None, None)
    plugin.answer(token=token, certificate=chain, key=key, version=version)


@pytest.mark.parametrize(
    ("token", "certificate", "status", "calls"),
    [
        (BAD, None, 401, 2),
        (None, BAD, 401, 2),
        (GOOD, None, 200, 1),
        (None, GOOD, 200, 1),
        (GOOD, GOOD, 200, 1),
        (BAD, GOOD, 200, 1),
        (GOOD, BAD, 200, 1),
        (BAD, BAD, 401, 2),
    ],
)
def test_tokens_and_certificates(
    api: ApiServer,
    plugin: PluginScript,
    connect_to: Connect,
    client_certificate: Issue,
    measured: Measured,
    version: str,
    token: str | None,
    certificate: str | None,
    status: int,
    calls: int,
) -> None:
    """unauthorized token .. unauthorized token and unauthorized certificate. E11, E57."""
    api.rules.tokens, api.rules.certificates = {GOOD}, {GOOD}
    answer(plugin, client_certificate, version, token, certificate)
    connection = connect_to(user=exec_user(plugin.path, version=version), metrics=measured.metrics)
    with connection.httpx() as client:
        assert client.get(PODS).status_code == status
    assert api.requests[-1].headers.get("Authorization") == (f"Bearer {token}" if token else None)
    assert api.requests[-1].certificate == certificate
    assert measured.calls == {("0", "no_error"): calls}
    assert measured.policy == {("allowed",): calls}


@pytest.mark.parametrize("static", ["basic", "bearer", "certificate"])
def test_static_credentials_are_favoured_and_the_plugin_never_runs(
    api: ApiServer,
    plugin: PluginScript,
    connect_to: Connect,
    client_certificate: Issue,
    measured: Measured,
    version: str,
    static: str,
    tmp_path: Path,
) -> None:
    """E27."""
    api.rules.tokens = {GOOD}
    plugin.answer(token=GOOD, version=version)
    chain, key = client_certificate(BAD)
    (tmp_path / "crt").write_text(chain)
    (tmp_path / "key").write_text(key)
    user: dict[str, Any] = {
        "basic": {"username": "u", "password": "p"},
        "bearer": {"token": BAD},
        "certificate": {"client-certificate": str(tmp_path / "crt"), "client-key": str(tmp_path / "key")},
    }[static]
    connection = connect_to(user={**exec_user(plugin.path, version=version), **user}, metrics=measured.metrics)
    with connection.httpx() as client:
        assert client.get(PODS).status_code == 401
    assert (plugin.runs, measured.calls, measured.policy) == (0, {}, {})


def test_unknown_binary_and_binary_not_executable(
    api: ApiServer, connect_to: Connect, measured: Measured, version: str, tmp_path: Path
) -> None:
    """E16, E57."""
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    for command, code in (("does not exist", "not-found"), (str(tmp_path / "not-executable"), "not-executable")):
        connection = connect_to(user=exec_user(command, version=version), metrics=measured.metrics)
        with connection.httpx() as client, pytest.raises(CredentialError) as caught:
            client.get(PODS)
        assert caught.value.code == f"exec-plugin-{code}"
    assert api.requests == []
    assert measured.calls == {("1", "plugin_not_found_error"): 2}
    assert measured.policy == {("allowed",): 2}


def test_binary_fails(
    api: ApiServer, plugin: PluginScript, connect_to: Connect, measured: Measured, version: str
) -> None:
    """E24, E57."""
    plugin.exit(10)
    connection = connect_to(user=exec_user(plugin.path, version=version), metrics=measured.metrics)
    with connection.httpx() as client, pytest.raises(CredentialError, match="exit code 10"):
        client.get(PODS)
    assert api.requests == []
    assert measured.calls == {("10", "plugin_execution_error"): 1}


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        (lambda path: DenyAll(), False),
        (lambda path: Allowlist(("something-else",)), False),
        (lambda path: AllowAll(), True),
        (lambda path: Allowlist((path,)), True),
    ],
    ids=["denyall", "allowlist without it", "allowall happy path", "allowlist happy path"],
)
def test_policies(
    plugin: PluginScript,
    connect_to: Connect,
    measured: Measured,
    version: str,
    policy: Callable[[str], PluginPolicy],
    allowed: bool,
) -> None:
    """E61."""
    plugin.answer(token=GOOD, version=version)
    user = exec_user(plugin.path, version=version)
    connection = connect_to(user=user, metrics=measured.metrics, policy=policy(str(plugin.path)))
    with connection.httpx() as client:
        if allowed:
            assert client.get(PODS).status_code == 200
        else:
            with pytest.raises(CredentialError, match=r"DenyAll|allowlist"):
                client.get(PODS)
    assert measured.calls == ({("0", "no_error"): 1} if allowed else {})
    assert measured.policy == {("allowed" if allowed else "denied",): 1}


# --- watches, as an informer holds them ---


class Watcher:
    """One watch, read in a thread; `event()` is the next event's object name."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._names: list[str] = []
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._client.stream("GET", PODS, params={"watch": "1"}, timeout=None) as response:
            for line in response.iter_lines():
                with self._more:
                    self._names.append(line)
                    self._more.notify_all()

    def wait_for(self, text: str) -> None:
        with self._more:
            assert self._more.wait_for(lambda: any(text in name for name in self._names), 30), f"no event {text}"


def event(name: str) -> dict[str, Any]:
    return {"type": "ADDED", "object": {"metadata": {"name": name}}}


@pytest.mark.parametrize("kind", ["token", "certificate"])
def test_a_long_watch_survives_rotation_and_new_requests_use_the_new_credential(
    api: ApiServer, plugin: PluginScript, connect_to: Connect, client_certificate: Issue, clock: Any, kind: str
) -> None:
    """E1, E46, F25."""

    def rotate(name: str) -> None:
        token, certificate = (name, None) if kind == "token" else (None, name)
        chain, key = client_certificate(certificate) if certificate else (None, None)
        plugin.answer(
            token=token, certificate=chain, key=key, expires_at=clock.now().replace(year=clock.now().year + 1)
        )
        api.rules.tokens, api.rules.certificates = ({name}, set()) if kind == "token" else (set(), {name})

    rotate("first")
    with closing(connect_to().httpx()) as client:
        assert client.get(PODS).status_code == 200
        watcher = Watcher(client)
        api.wait_for_watches(1)
        api.emit(event("before"))
        watcher.wait_for("before")
        for name in ("second", "third"):
            rotate(name)
            assert client.get(PODS).status_code == 200
            if kind == "certificate":
                assert api.requests[-1].certificate == name
            else:
                assert api.requests[-1].headers.get("Authorization") == f"Bearer {name}"
            api.emit(event(f"after-{name}"))
            watcher.wait_for(f"after-{name}")
        api.end_watches()
        watcher._thread.join(30)
        assert not watcher._thread.is_alive()
    assert plugin.runs == 3


def test_a_client_comes_back_by_itself_when_its_plugin_does(
    api: ApiServer, plugin: PluginScript, connect_to: Connect, clock: Any
) -> None:
    """The meaning of TestExecPluginRotationViaInformer: bad, good for a while, bad, good; one client. E1, E23."""
    api.rules.tokens = {GOOD}
    with connect_to().httpx() as client:
        plugin.answer(token=BAD)
        assert client.get(PODS).status_code == 401
        clock.advance(60)
        plugin.answer(token=GOOD)
        assert client.get(PODS).status_code == 200
        api.rules.tokens = {"another"}
        plugin.answer(token=BAD)
        assert client.get(PODS).status_code == 401
        clock.advance(60)
        plugin.answer(token="another")
        assert client.get(PODS).status_code == 200
