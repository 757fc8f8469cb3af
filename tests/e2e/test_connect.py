"""kubectl, and other clients, through ``ostiary connect`` to a cluster that demands a client certificate."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubernetes
import kubernetes.stream
import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.connect_desk import ConnectDesk, certificate_user, connect_desk
from tests.support.plugins import PluginScript, exec_user
from tests.support.proxy import ConnectProxy

pytestmark = pytest.mark.needs("kubectl")
LARGE = 900_000


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_pod("default", "web", log=b"hello\n")
        yield cluster


@pytest.fixture(scope="module")
def desk(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectDesk]:
    """One for all tests, with its context."""
    folder = tmp_path_factory.mktemp("desk")
    with connect_desk(folder, cluster, certificate_user(cluster, folder)) as desk:
        done = desk.connect()
        assert "kubectl --context test@ostiary" in done.stderr
        yield desk


def test_kubectl_works_with_a_key_that_it_does_not_have(cluster: Cluster, desk: ConnectDesk, tmp_path: Path) -> None:
    kubectl = desk.kubectl()
    assert "web" in kubectl.output("get", "pods")
    assert kubectl.output("logs", "web") == "hello\n"

    # A body that takes many reads, in both directions.
    text = "x" * LARGE
    content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"}, "data": {"large": text}}
    (tmp_path / "large.json").write_text(json.dumps(content))
    kubectl.output("create", "-f", str(tmp_path / "large.json"))
    assert kubectl.output("get", "configmap", "large", "-o", "jsonpath={.data.large}") == text

    # The key never left the proxy, and the token for the proxy never reached the cluster.
    assert {record.certificate for record in cluster.requests} == {"jane"}
    assert all(record.value("Authorization") is None for record in cluster.requests)
    assert "certificate.pem" not in yaml_of_new_context(desk)


def yaml_of_new_context(desk: ConnectDesk) -> str:
    return desk.connect("test", "--print").stdout


def test_watches_and_terminals_stream(cluster: Cluster, desk: ConnectDesk) -> None:
    kubectl = desk.kubectl()
    with kubectl.running("get", "pods", "--watch", "--no-headers") as watch:
        assert watch.stdout is not None
        assert watch.stdout.readline().startswith("web")
        cluster.add_pod("default", "second")
        assert watch.stdout.readline().startswith("second")
    cluster.remove("pods", "default", "second")
    # By WebSocket where this kubectl speaks it, and by SPDY.
    assert kubectl.output("exec", "-i", "web", "--", "cat", stdin="over\n") == "over\n"
    kubectl.environment["KUBECTL_REMOTE_COMMAND_WEBSOCKETS"] = "false"
    assert kubectl.output("exec", "-i", "web", "--", "cat", stdin="spdy\n") == "spdy\n"
    assert any("spdy" in (record.value("Upgrade") or "").lower() for record in cluster.requests)


def test_a_python_client_uses_it_whose_websockets_send_their_origin(
    cluster: Cluster, desk: ConnectDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in desk.environment.items():
        monkeypatch.setenv(name, value)
    load: Any = kubernetes.config.new_client_from_config
    api: Any = kubernetes.client.CoreV1Api(load(str(desk.kubeconfig), context="test@ostiary"))
    assert [pod.metadata.name for pod in api.list_namespaced_pod("default").items] == ["web"]
    command = ["echo", "hi"]
    said = kubernetes.stream.stream(
        api.connect_get_namespaced_pod_exec, "web", "default", command=command, stdout=True, stderr=True
    )
    assert said == "hi\n"


def test_kubectl_starts_it_and_starts_it_again(cluster: Cluster, desk: ConnectDesk) -> None:
    desk.token()
    first = desk.status()["pid"]
    assert desk.connect("--stop").stderr == "ostiary: the proxy has ended\n"
    assert not desk.status()["running"]
    assert "web" in desk.kubectl().output("get", "pods")
    second = desk.status()["pid"]
    assert second != first
    # It leaves its socket behind; the next one replaces it.
    os.kill(second, signal.SIGKILL)
    wait_for_end(second)
    assert desk.socket.exists()
    assert "web" in desk.kubectl().output("get", "pods")
    assert desk.status()["pid"] != second


def wait_for_end(process: int) -> None:
    descriptor = os.pidfd_open(process)
    with os.fdopen(descriptor) as end:
        assert select.select([end], [], [], 30)[0]


def test_many_kubectls_at_once_start_one(cluster: Cluster, desk: ConnectDesk) -> None:
    desk.connect("--stop")
    before = desk.log.count("has started")
    with ThreadPoolExecutor(6) as threads:
        shown = list(threads.map(lambda _: desk.kubectl().output("get", "pods", "-o", "name"), range(6)))
    assert shown == ["pod/web\n"] * 6
    assert desk.log.count("has started") == before + 1


def test_an_exec_plugin_behind_it_runs_once_per_rejected_credential(cluster: Cluster, tmp_path: Path) -> None:
    plugin = PluginScript(tmp_path / "plugin").answer(token=cluster.add_token("jane"))
    with connect_desk(tmp_path, cluster, exec_user(plugin.path)) as desk:
        desk.connect()
        desk.kubectl().output("get", "pods")
        assert plugin.runs == 1
        # The cluster forgets all tokens; the plugin has a new one.
        cluster.trust.tokens.clear()
        plugin.answer(token=cluster.add_token("jane"))
        desk.kubectl().output("get", "pods")
        assert plugin.runs == 2
        # And now it has none that the cluster takes: a 401 is what it would be without us.
        cluster.trust.tokens.clear()
        done = desk.kubectl()("get", "pods")
        assert done.returncode == 1
        assert "the server rejected the credential of user 'dev'" in done.stderr
        # A plugin that fails is told where the person looks.
        desk.connect("--stop")
        plugin.exit(3)
        done = desk.kubectl()("get", "pods")
        assert done.returncode == 1
        assert "exec-plugin-failed" in done.stderr


def test_it_impersonates_and_uses_the_clusters_proxy(cluster: Cluster, tmp_path: Path) -> None:
    cluster.trust.impersonators.add("jane")
    user = {**certificate_user(cluster, tmp_path), "as": "auditor", "as-groups": ["audit"]}
    with ConnectProxy().running() as proxy, connect_desk(tmp_path, cluster, user) as desk:
        text = desk.kubeconfig.read_text()
        desk.kubeconfig.write_text(
            text.replace('"server": "https://localhost', f'"proxy-url": "{proxy.url}", "server": "https://localhost')
        )
        desk.connect()
        desk.kubectl().output("get", "pods")
        last = cluster.requests[-1]
        assert last.user is not None
        assert last.user.username == "auditor"
        assert "audit" in last.user.groups
        assert proxy.targets == [f"localhost:{cluster.port}"] * len(proxy.targets) != []
        # As with kubectl itself, what the command line says takes the place of all of it.
        desk.kubectl().output("get", "pods", "--as=bob")
        last = cluster.requests[-1]
        assert last.user is not None
        assert last.user.username == "bob"
        assert "audit" not in last.user.groups


def test_a_changed_kubeconfig_counts_at_once(cluster: Cluster, desk: ConnectDesk, tmp_path: Path) -> None:
    desk.kubectl().output("get", "pods")
    assert cluster.requests[-1].certificate == "jane"
    own = desk.kubeconfig.parent
    before = desk.kubeconfig.read_text()
    (tmp_path / "joan").mkdir()
    certificate_user(cluster, tmp_path / "joan", "joan")
    text = before
    for name in ("certificate.pem", "key.pem"):
        text = text.replace(str(own / name), str(tmp_path / "joan" / name))
    desk.kubeconfig.write_text(text)
    desk.kubectl().output("get", "pods")
    assert cluster.requests[-1].certificate == "joan"
    desk.kubeconfig.write_text(before)


def test_in_the_foreground_it_serves_until_it_is_interrupted(cluster: Cluster, desk: ConnectDesk) -> None:
    desk.connect("--stop")
    command = ["python", "-m", "ostiary", "connect", "test", "--foreground"]
    with subprocess.Popen(command, env=desk.environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while "has started" not in (line := process.stderr.readline()):
                assert line
            assert "web" in desk.kubectl().output("get", "pods")
            assert desk.status()["pid"] == process.pid
            done = desk.run("connect", "test", "--foreground")
            assert done.returncode == 1
            assert "runs in the background already" in done.stderr
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert not desk.socket.exists()
