"""``ostiary agent`` as a process: real clients run on its token file for hours of the gateway's time."""

from __future__ import annotations

import os
import signal
import socket
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

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.testing import FakeClock
from tests.support.cluster import Cluster
from tests.support.cluster.client import Kubectl
from tests.support.gateway import SECONDS, Gateway, InProcessGateway, Site, role
from tests.support.issuer import Issuer
from tests.support.plugins import write_kubeconfig
from tests.support.ports import free_ports
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


class Agent:
    """The process, and the folder that it writes to."""

    def __init__(self, folder: Path, gateway: Gateway, *arguments: str) -> None:
        self.folder, self.token = folder, folder / "token"
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._command = [
            *(sys.executable, "-m", "ostiary", "agent", "--server", gateway.url(), "--dir", str(folder)),
            *("--ca", str(gateway.site.folder / "ca.pem"), *arguments),
        ]

    @contextmanager
    def running(self) -> Iterator[Agent]:
        environment = {**os.environ, "NO_COLOR": "1", "HOME": str(self.folder)}
        with subprocess.Popen(self._command, env=environment, stderr=subprocess.PIPE, text=True) as self.process:
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

    def says(self, text: str) -> str:
        with self._news:
            line = self._news.wait_for(lambda: next((line for line in self.lines if text in line), ""), SECONDS)
        assert line, f"the agent did not say {text!r}: {self.lines}"
        return line

    def rotate(self) -> str:
        """Have it get another token; returns it when it is there."""
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
def agent(gateway: InProcessGateway, tmp_path: Path) -> Iterator[Agent]:
    """It proves itself with its own last token, as the account."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(first_token(gateway))
    agent = Agent(
        folder,
        gateway,
        *("--service-account", "team/deployer", "--for", f"{LIFETIME}s", "--gateway-token-file", str(folder / "token")),
    )
    before = (folder / "token").read_text()
    with agent.running():
        until(lambda: agent.token.read_text() != before)
        yield agent


@pytest.mark.slow
def test_the_official_python_client_runs_for_hours_on_rotated_tokens(
    gateway: InProcessGateway, agent: Agent, clock: FakeClock
) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(gateway.port)}
    loader: Any = InClusterConfigLoader(str(agent.token), str(agent.folder / "ca.crt"), environ=environ)  # type: ignore[no-untyped-call]
    # It looks at the file once a minute, and here a minute passes in no time.
    loader._token_refresh_period = timedelta(0)
    configuration = kubernetes.client.Configuration()
    loader.load_and_set(configuration)
    pods: Any = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(configuration))
    namespace = (agent.folder / "namespace").read_text()

    def names() -> list[str]:
        return [pod.metadata.name for pod in pods.list_namespaced_pod(namespace).items]

    tokens = [agent.token.read_text()]
    for _ in range(ROTATIONS):
        tokens.append(agent.rotate())
        assert names() == ["web"]
        clock.advance(LIFETIME * 0.7)
        assert names() == ["web"]
    assert len(set(tokens)) == ROTATIONS + 1
    statuses = [gateway.get("/api/v1/namespaces/team/pods", token).status_code for token in tokens]
    assert statuses == [401] * ROTATIONS + [200]
    assert agent.lines == []


@pytest.mark.needs("kubectl")
def test_kubectl_with_a_token_file_follows_the_rotations(
    gateway: InProcessGateway, agent: Agent, clock: FakeClock, tmp_path: Path
) -> None:
    authority = {"certificate-authority": str(agent.folder / "ca.crt")}
    user = {"tokenFile": str(agent.token)}
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, server=gateway.url(), user=user, cluster=authority, namespace="team")
    kubectl = Kubectl(path)
    for _ in range(8):
        agent.rotate()
        clock.advance(LIFETIME * 0.7)
        assert "web " in kubectl.output("get", "pods")


def test_an_account_that_is_gone_is_told_and_the_agent_goes_on(
    gateway: InProcessGateway, agent: Agent, clock: FakeClock
) -> None:
    token = agent.token.read_text()
    with gateway.http(gateway.login("root").token) as http:
        revocation = {"type": "user", "value": ACCOUNT}
        assert http.post("/apis/ostiary.dev/v1/revocations", json=revocation).status_code == 201
    agent.process.send_signal(signal.SIGHUP)
    line = agent.says("getting a token failed")
    assert "401" in line
    assert token not in "".join(agent.lines)
    assert agent.token.read_text() == token, "the old one stays"
    # An operator helps: the next attempt finds a proof again.
    agent.token.write_text(first_token(gateway))
    agent.process.send_signal(signal.SIGHUP)
    agent.says("there is a new token again")


def test_sigterm_ends_it_well_and_the_socket_answers_until_then(gateway: InProcessGateway, tmp_path: Path) -> None:
    folder, path = tmp_path / "files", tmp_path / "agent.sock"
    proof = tmp_path / "proof"
    proof.write_text(first_token(gateway))
    account = ("--service-account", "team/deployer", "--gateway-token-file", str(proof), "--mode", "0640")
    agent = Agent(folder, gateway, *account, "--socket", str(path))
    with agent.running():
        until(lambda: (folder / "token").exists() and path.exists())
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"GET /token HTTP/1.0\r\n\r\n")
            reply = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        assert reply.partition("\r\n\r\n")[2] == (folder / "token").read_text()
        probe = [sys.executable, "-m", "ostiary", "agent", "--probe", "--socket", str(path)]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, "fresh\n")
    assert agent.code == 0
    assert not path.exists()
    assert (folder / "token").stat().st_mode & 0o777 == 0o640
    done = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1


def test_once_writes_one_token_and_ends(gateway: InProcessGateway, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    proof.write_text(first_token(gateway))
    account = ("--service-account", "team/deployer", "--gateway-token-file", str(proof))
    agent = Agent(tmp_path / "files", gateway, *account, "--once")
    done = subprocess.run(agent._command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert gateway.get("/api/v1/namespaces/team/pods", agent.token.read_text()).status_code == 200
    proof.write_text("ost_" + "x" * 51)
    done = subprocess.run(agent._command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "xxxx" not in done.stderr


@pytest.mark.parametrize("account", [False, True], ids=["the pod's own token", "a service account's token"])
def test_the_platform_vouches_for_the_agent_and_no_secret_is_stored(
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
            agent = Agent(tmp_path / "files", gateway, "--from", "kubernetes", "--token-file", str(projected), *more)
            with agent.running():
                token = until(lambda: agent.token.read_text() if agent.token.exists() else "")
                assert (agent.folder / "namespace").read_text() == "team"
                answer = gateway.get("/auth/whoami", token)
                assert answer.json()["user"] == (ACCOUNT if account else pod)
                assert gateway.get("/api/v1/namespaces/team/pods", token).status_code == 200
            assert agent.lines == []
            files = [path for path in tmp_path.rglob("*") if path.is_file() and path != projected]
            assert [path for path in files if proof.encode() in path.read_bytes()] == []
