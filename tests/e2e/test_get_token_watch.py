"""``get-token --watch`` as a process: real clients run on its token file for hours of the gateway's time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import kubernetes.client
import pytest
import trustme
from kubernetes.config.incluster_config import InClusterConfigLoader

from ostiary.cli import main
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary_gateway.testing import FakeClock
from tests.support.cluster import Cluster
from tests.support.cluster.client import Kubectl
from tests.support.gateway import SECONDS, Gateway, InProcessGateway, Site, role
from tests.support.issuer import Issuer
from tests.support.plugins import write_kubeconfig
from tests.support.ports import free_ports
from tests.support.signin_server import SigninServer
from tests.support.waiting import until
from tests.support.workloads import SERVICE_ACCOUNT, platform_token

READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
ITSELF = {
    "apiGroups": ["ostiary.dev"],
    "resources": ["serviceaccounts/token"],
    "verbs": ["create"],
    "resourceNames": ["deployer"],
}
OPERATOR = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
ACCOUNT = "ostiary:serviceaccount:team:deployer"
LIFETIME = 600
ROTATIONS = 40


class Watcher:
    """The process, and the directory that it writes to."""

    def __init__(self, folder: Path, gateway: Gateway, *arguments: str) -> None:
        self.folder, self.token = folder, folder / "token"
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.command = [
            *(sys.executable, "-m", "ostiary", "get-token", "--server", gateway.url(), "--output-dir", str(folder)),
            *("--ca", str(gateway.site.folder / "ca.pem"), *arguments),
        ]

    @contextmanager
    def running(self) -> Iterator[Watcher]:
        environment = {**os.environ, "NO_COLOR": "1", "HOME": str(self.folder)}
        with subprocess.Popen(
            [*self.command, "--watch"], env=environment, stderr=subprocess.PIPE, text=True
        ) as self.process:
            reader = threading.Thread(target=self._read)
            reader.start()
            try:
                yield self
            finally:
                self.process.terminate()
                try:
                    self.code = self.process.wait(SECONDS)
                finally:
                    # One that does not end must not keep the suite from its end.
                    self.process.kill()
                reader.join(SECONDS)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    def reports(self, text: str) -> str:
        with self._news:
            line = self._news.wait_for(lambda: next((line for line in self.lines if text in line), ""), SECONDS)
        assert line, f"it did not report {text!r}: {self.lines}"
        return line

    def rotate(self) -> str:
        """Make it refresh the token, and return the new one."""
        before = self.token.read_text()
        self.process.send_signal(signal.SIGHUP)
        return str(until(lambda: (now := self.token.read_text()) != before and now))


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web", log=b"one\n")
        yield cluster


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def gateway(ca: trustme.CA, cluster: Cluster, tmp_path: Path, clock: FakeClock) -> Iterator[InProcessGateway]:
    site = Site(tmp_path / "gateway", ca)
    site.users("root")
    site.policy(
        role("team", READ, ITSELF, User=ACCOUNT),
        role("", OPERATOR, User="root"),
    )
    declared = {"declared": [{"namespace": "team", "name": "deployer"}]}
    with site.in_process(clock=clock, upstreams=[site.impersonating(cluster)], serviceAccounts=declared) as gateway:
        yield gateway


def first_token(gateway: Gateway) -> str:
    """As an operator puts it into the pod's volume once."""
    with gateway.http(gateway.login("root").token) as http:
        answer = http.post(
            "/apis/ostiary.dev/v1/namespaces/team/serviceaccounts/deployer/token",
            json={"spec": {"expirationSeconds": LIFETIME}},
        )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["status"]["token"])


@pytest.fixture
def watcher(gateway: InProcessGateway, tmp_path: Path) -> Iterator[Watcher]:
    """It requests each token with the one before."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(first_token(gateway))
    watcher = Watcher(
        folder,
        gateway,
        *("--service-account", "team/deployer", "--for", f"{LIFETIME}s", "--gateway-token-file", str(folder / "token")),
    )
    before = (folder / "token").read_text()
    with watcher.running():
        until(lambda: watcher.token.read_text() != before)
        yield watcher


@pytest.mark.slow
def test_the_official_python_client_runs_for_hours_on_rotated_tokens(
    gateway: InProcessGateway, watcher: Watcher, clock: FakeClock
) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(gateway.port)}
    loader: Any = InClusterConfigLoader(str(watcher.token), str(watcher.folder / "ca.crt"), environ=environ)  # type: ignore[no-untyped-call]
    # It looks at the file once a minute, and here a minute passes in no time.
    loader._token_refresh_period = timedelta(0)
    configuration = kubernetes.client.Configuration()
    loader.load_and_set(configuration)
    pods: Any = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(configuration))
    namespace = (watcher.folder / "namespace").read_text()

    def names() -> list[str]:
        return [pod.metadata.name for pod in pods.list_namespaced_pod(namespace).items]

    tokens = [watcher.token.read_text()]
    for _ in range(ROTATIONS):
        tokens.append(watcher.rotate())
        assert names() == ["web"]
        clock.advance(LIFETIME * 0.7)
        assert names() == ["web"]
    assert len(set(tokens)) == ROTATIONS + 1
    statuses = [gateway.get("/api/v1/namespaces/team/pods", token).status_code for token in tokens]
    assert statuses == [401] * ROTATIONS + [200]
    assert watcher.lines == []


@pytest.mark.needs("kubectl")
def test_kubectl_with_a_token_file_follows_the_rotations(
    gateway: InProcessGateway, watcher: Watcher, clock: FakeClock, tmp_path: Path
) -> None:
    authority = {"certificate-authority": str(watcher.folder / "ca.crt")}
    user = {"tokenFile": str(watcher.token)}
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, server=gateway.url(), user=user, cluster=authority, namespace="team")
    kubectl = Kubectl(path)
    for _ in range(8):
        watcher.rotate()
        clock.advance(LIFETIME * 0.7)
        assert "web " in kubectl.output("get", "pods")


def test_a_revoked_account_is_reported_and_the_watcher_continues(
    gateway: InProcessGateway, watcher: Watcher, clock: FakeClock
) -> None:
    token = watcher.token.read_text()
    with gateway.http(gateway.login("root").token) as http:
        revocation = {"type": "user", "value": ACCOUNT}
        assert http.post("/apis/ostiary.dev/v1/revocations", json=revocation).status_code == 201
    watcher.process.send_signal(signal.SIGHUP)
    line = watcher.reports("the token refresh was denied")
    assert "401" in line
    assert token not in "".join(watcher.lines)
    assert watcher.token.read_text() == token, "the current token stays"
    # An operator writes a new token: the next attempt succeeds.
    watcher.token.write_text(first_token(gateway))
    watcher.process.send_signal(signal.SIGHUP)
    watcher.reports("the token was refreshed")


def test_a_probe_succeeds_until_sigterm_ends_it(gateway: InProcessGateway, tmp_path: Path) -> None:
    folder, ready_file, proof = tmp_path / "files", tmp_path / "files" / "ready", tmp_path / "proof"
    proof.write_text(first_token(gateway))
    account = ("--service-account", "team/deployer", "--gateway-token-file", str(proof), "--mode", "0640")
    watcher = Watcher(folder, gateway, *account, "--ready-file", str(ready_file))
    probe = [sys.executable, "-m", "ostiary", "get-token", "--probe", "--ready-file", str(ready_file)]
    with watcher.running():
        until(ready_file.exists)
        assert (folder / "token").stat().st_mode & 0o777 == 0o640
        assert subprocess.run(probe, timeout=60, check=False).returncode == 0
    assert watcher.code == 0
    assert not ready_file.exists()
    assert subprocess.run(probe, timeout=60, check=False).returncode == 1


def test_without_watch_it_writes_one_token_and_ends(gateway: InProcessGateway, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    proof.write_text(first_token(gateway))
    account = ("--service-account", "team/deployer", "--gateway-token-file", str(proof))
    watcher = Watcher(tmp_path / "files", gateway, *account)
    done = subprocess.run(watcher.command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert gateway.get("/api/v1/namespaces/team/pods", watcher.token.read_text()).status_code == 200
    proof.write_text("ost_" + "x" * 51)
    done = subprocess.run(watcher.command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "code   gateway-refused" in done.stderr
    assert "xxxx" not in done.stderr


def test_a_token_with_a_scope_can_do_only_that(gateway: InProcessGateway, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    proof.write_text(first_token(gateway))
    account = ("--service-account", "team/deployer", "--gateway-token-file", str(proof), "--can", "get pods -n team")
    watcher = Watcher(tmp_path / "files", gateway, *account)
    assert subprocess.run(watcher.command, timeout=60, check=False).returncode == 0
    token = watcher.token.read_text()
    assert gateway.get("/api/v1/namespaces/team/pods/web", token).status_code == 200
    assert gateway.get("/api/v1/namespaces/team/pods", token).status_code == 403


@pytest.fixture
def signed_in(ca: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SigninServer]:
    """A gateway with a session of ``ostiary login`` on this machine."""
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with SigninServer(ca).running() as server:
        server.methods = [{"name": "here", "kind": "ambient"}]
        assert main(["login", "--server", server.url, "--ca", str(tmp_path / "ca.pem")]) == 0
        yield server


def test_the_token_of_a_session_is_renewed_long_before_it_expires(signed_in: SigninServer, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    command = [sys.executable, "-m", "ostiary", "get-token", "--server", signed_in.url, "--output-dir", str(folder)]
    with subprocess.Popen([*command, "--watch"]) as process:
        try:
            first = until(lambda: (folder / "token").exists() and (folder / "token").read_text())
            process.send_signal(signal.SIGHUP)
            until(lambda: (folder / "token").read_text() != first)
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert signed_in.count["POST /auth/renew"] == 1
    assert (folder / "token").read_text() in signed_in.tokens
    assert (folder / "ca.crt").read_text() == (tmp_path / "ca.pem").read_text(), "that of the session"


@pytest.mark.parametrize("account", [False, True], ids=["the pod's own token", "a service account's token"])
def test_the_platform_proves_who_it_is_and_no_secret_is_stored(
    ca: trustme.CA, cluster: Cluster, tmp_path: Path, account: bool
) -> None:
    """S72: the pod's projected token is the proof; what the programs of the pod get is a token of the gateway."""
    site, issuer = Site(tmp_path / "gateway", ca), Issuer(ca, SYSTEM_CLOCK)
    (port,) = free_ports(1)
    server, projected = f"https://localhost:{port}", tmp_path / "projected"
    pod = "pods:serviceaccount:shop:deployer"
    site.policy(role("team", READ, ITSELF, User=pod), role("team", READ, User=ACCOUNT))
    with issuer.running():
        proof = platform_token(
            SYSTEM_CLOCK, issuer.key, SERVICE_ACCOUNT, issuer=issuer.url, audience=[server], jti="first"
        )
        projected.write_text(proof)
        workload = {"type": "workload", "platform": "kubernetes", "issuer": issuer.url, "ca": "ca.pem"}
        with site.serving(
            externalURL=server,
            listen={"address": f"127.0.0.1:{port}"},
            identity=[{"name": "pods", "prefix": "pods:", **workload}],
            upstreams=[site.impersonating(cluster)],
            serviceAccounts={"declared": [{"namespace": "team", "name": "deployer"}]},
        ) as gateway:
            more = ("--service-account", "team/deployer") if account else ("--namespace", "team")
            watcher = Watcher(
                tmp_path / "files", gateway, "--from", "kubernetes", "--token-file", str(projected), *more
            )
            with watcher.running():
                token = until(lambda: watcher.token.read_text() if watcher.token.exists() else "")
                assert (watcher.folder / "namespace").read_text() == "team"
                answer = gateway.get("/auth/whoami", token)
                assert answer.json()["user"] == (ACCOUNT if account else pod)
                assert gateway.get("/api/v1/namespaces/team/pods", token).status_code == 200
            assert watcher.lines == []
            files = [path for path in tmp_path.rglob("*") if path.is_file() and path != projected]
            assert [path for path in files if proof.encode() in path.read_bytes()] == []
