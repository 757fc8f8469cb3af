"""One gateway before two clusters, and people with different rights: each gets the contexts that they can use.

The real ``ostiary-gateway serve``, ``ostiary login`` at a terminal, ``ostiary kubeconfig --all`` and kubectl. One
cluster is told apart by a prefix, the other by its host.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, ServedGateway, Site, password, role
from tests.support.kubectl import find_kubectl, newest_exec_version
from tests.support.terminal import AtTerminal
from tests.support.waiting import until

pytestmark = [pytest.mark.needs("kubectl"), pytest.mark.timeout(300)]
BIN = Path(sys.executable).parent


@dataclass
class Machine:
    """Somebody's: a home with nothing in it, kubectl and ostiary."""

    home: Path
    gateway: ServedGateway

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": f"{BIN}:/usr/bin:/bin", "TERM": "dumb"}

    @property
    def config(self) -> Path:
        return self.home / ".kube" / "config"

    def sign_in(self, user: str) -> None:
        self.home.mkdir()
        authority = str(self.gateway.site.folder / "ca.pem")
        words = ["login", "--server", self.gateway.url(), "--ca", authority]
        terminal = AtTerminal([str(BIN / "ostiary"), *words], self.environment)
        terminal.read_until("username at ")
        terminal.type(f"{user}\n")
        terminal.read_until("password: ")
        terminal.type(f"{password(user)}\n")
        code, _ = terminal.end()
        assert code == 0, terminal.shown

    def ostiary(self, *words: str, code: int = 0) -> str:
        done = self._run(BIN / "ostiary", *words)
        assert done.returncode == code, done.stderr
        return done.stderr

    def set_up(self, *more: str, code: int = 0) -> str:
        return self.ostiary("kubeconfig", "--server", self.gateway.url(), "--all", "--merge", *more, code=code)

    def contexts(self) -> list[str]:
        return [each["name"] for each in yaml.safe_load(self.config.read_text())["contexts"]]

    def kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        text = self.config.read_text().replace("k8s.io/v1\n", f"k8s.io/{newest_exec_version()}\n")
        self.config.write_text(text)
        return self._run(str(find_kubectl()), *words)

    def pods(self, context: str) -> str:
        done = self.kubectl("--context", context, "-n", "team", "get", "pods", "-o", "name")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


@pytest.fixture
def clusters(ca: trustme.CA) -> Iterator[dict[str, Cluster]]:
    with Cluster(ca) as dev, Cluster(ca) as prod:
        both = {"dev": dev, "prod": prod}
        for name, cluster in both.items():
            cluster.add_namespace("team")
            cluster.add_pod("team", f"of-{name}")
        yield both


@pytest.fixture
def gateway(tmp_path: Path, ca: trustme.CA, clusters: dict[str, Cluster]) -> Iterator[ServedGateway]:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice", "bob", "carol")
    site.policy(role("team", "pods", User="alice"), role("team", "pods", User="bob"), folder="dev")
    site.policy(role("team", "pods", User="alice"), folder="prod")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with site.serving(
        listen={"address": f"127.0.0.1:{port}"},
        externalURL=f"https://localhost:{port}",
        externalCA="ca.pem",
        authorization={
            "chain": [{"name": name, "type": "rbac", "paths": [name], "upstreams": [name]} for name in clusters]
        },
        upstreams=[
            _upstream(site, "dev", clusters["dev"], prefix="/dev", stripPrefix=True, displayName="Development"),
            _upstream(site, "prod", clusters["prod"], hosts=["127.0.0.1"]),
        ],
    ) as gateway:
        yield gateway


def _upstream(site: Site, name: str, cluster: Cluster, **more: Any) -> dict[str, Any]:
    # Each cluster knows its own token of the gateway.
    upstream = {**site.impersonating(cluster, **more), "name": name, "tokenFile": f"token-{name}"}
    (site.folder / "token").rename(site.folder / f"token-{name}")
    return upstream


def test_each_person_gets_the_contexts_that_they_can_use(gateway: ServedGateway, tmp_path: Path) -> None:
    alice = Machine(tmp_path / "alice", gateway)
    alice.sign_in("alice")
    assert "2 contexts are in" in alice.set_up()
    assert alice.contexts() == ["localhost/dev", "localhost/prod"]
    assert alice.pods("localhost/dev") == "pod/of-dev"
    assert alice.pods("localhost/prod") == "pod/of-prod"
    assert alice.kubectl("get", "pods", "-n", "team", "-o", "name").stdout.strip() == "pod/of-dev"

    bob = Machine(tmp_path / "bob", gateway)
    bob.sign_in("bob")
    bob.set_up()
    assert bob.contexts() == ["localhost/dev"]
    assert "prod" not in bob.config.read_text()
    assert bob.pods("localhost/dev") == "pod/of-dev"

    carol = Machine(tmp_path / "carol", gateway)
    carol.sign_in("carol")
    assert "there is no cluster that you may use" in carol.set_up(code=1)
    assert not carol.config.exists()


def test_the_downloaded_kubeconfig_works_on_a_machine_that_never_signed_in(
    gateway: ServedGateway, tmp_path: Path
) -> None:
    """The authority of the gateway comes with the cluster, also where that is at a host of its own."""
    machine = Machine(tmp_path / "home", gateway)
    machine.config.parent.mkdir(parents=True)
    token = gateway.login("alice").token
    machine.config.write_bytes(gateway.get("/auth/kubeconfig/all", token).content)
    machine.kubectl("config", "use-context", "localhost/prod")
    terminal = AtTerminal([str(find_kubectl()), "-n", "team", "get", "pods", "-o", "name"], machine.environment)
    terminal.read_until("username at ")
    terminal.type("alice\n")
    terminal.read_until("password: ")
    terminal.type(f"{password('alice')}\n")
    assert terminal.end() == (0, "pod/of-prod\n"), terminal.shown
    # One session for all of them: nobody is asked again.
    assert machine.pods("localhost/dev") == "pod/of-dev"


def test_a_right_that_is_withdrawn_takes_the_context_away_when_that_is_wanted(
    gateway: ServedGateway, tmp_path: Path
) -> None:
    alice = Machine(tmp_path / "alice", gateway)
    alice.sign_in("alice")
    alice.set_up()
    gateway.site.policy(folder="prod")
    token = gateway.login("alice").token
    with gateway.http(token) as http:
        # The gateway notices a changed file by itself, within about a second.
        until(lambda: len(http.get("/auth/upstreams").json()["upstreams"]) != 2)
    assert "--prune removes them" in alice.set_up()
    assert "removed" in alice.set_up("--prune")
    assert alice.contexts() == ["localhost/dev"]
