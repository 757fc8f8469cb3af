"""Several replicas of a gateway behind HAProxy, all on loopback, as an operator runs them on several machines.

    with Replicas(folder, ca, store={"type": "postgresql", ...}, upstreams=...) as replicas:
        token = replicas.front.login("alice").token
        replicas[0].kill()
        replicas.front.get("/api", token)           # by another one

HAProxy passes bytes on and asks ``/readyz`` ten times a second; a replica that says no gets no new connections.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, Gateway, ServedGateway, Site, password, role
from tests.support.ports import free_ports
from tests.support.tiers import missing
from tests.support.waiting import until

# A recovery takes a second or two; on a busy machine more.
RECOVERY_SECONDS = 90.0
_HAPROXY = """\
global
    stats socket {folder}/haproxy.sock mode 600 level admin
defaults
    mode tcp
    timeout connect 2s
    timeout check 2s
    timeout client 5m
    timeout server 5m
    option redispatch 1
    retries 10
    default-server inter 100ms fall 1 rise 1
frontend gateway
    bind 127.0.0.1:{port}
    default_backend replicas
backend replicas
    balance roundrobin
    option httpchk GET /readyz
{servers}
"""


class Front(Gateway):
    """HAProxy in front of the replicas, talked to like a gateway."""

    def __init__(self, site: Site, folder: Path, replicas: Sequence[tuple[int, int]]) -> None:
        super().__init__(site)
        self._folder = folder
        (self.port,) = free_ports(1)
        servers = "\n".join(
            f"    server replica-{number} 127.0.0.1:{port} check port {health}"
            for number, (port, health) in enumerate(replicas)
        )
        text = _HAPROXY.format(folder=folder, port=self.port, servers=servers)
        (folder / "haproxy.cfg").write_text(text)

    @contextmanager
    def running(self) -> Iterator[None]:
        if shutil.which("haproxy") is None:
            missing("haproxy")
        command = ["haproxy", "-db", "-f", str(self._folder / "haproxy.cfg")]
        with (
            (self._folder / "haproxy.log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as process,
        ):
            try:
                yield
            finally:
                process.kill()

    def in_service(self) -> int:
        """How many replicas HAProxy sends clients to."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self._folder / "haproxy.sock"))
            admin.sendall(b"show stat\n")
            rows = b"".join(iter(lambda: admin.recv(65536), b"")).decode().splitlines()
        column = rows[0].split(",").index("status")
        return sum(row.startswith("replicas,replica-") and row.split(",")[column] == "UP" for row in rows)


class Replicas:
    """*count* replicas with one configuration, but for their ports, over the one *store*."""

    def __init__(
        self, folder: Path, ca: trustme.CA, *, store: Mapping[str, Any], count: int = 3, **sections: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.site = Site(folder / "site", ca)
        ports = free_ports(2 * count)
        self._addresses = list(zip(ports[:count], ports[count:], strict=True))
        self._store, self._sections = store, sections
        self.front = Front(self.site, folder, self._addresses)
        self._replicas: list[ServedGateway] = []
        self._stack = ExitStack()

    def __enter__(self) -> Replicas:
        with ExitStack() as stack:
            stack.enter_context(self.front.running())
            for number, _ in enumerate(self._addresses):
                self._replicas.append(stack.enter_context(self._serving(number)))
            until(lambda: self.front.in_service() == len(self._addresses))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stack.__exit__(kind, error, trace)

    def use(self, **sections: Any) -> None:
        """More sections of the configuration, before the replicas start."""
        self._sections |= sections

    def __getitem__(self, number: int) -> ServedGateway:
        return self._replicas[number]

    def __len__(self) -> int:
        return len(self._replicas)

    def __iter__(self) -> Iterator[ServedGateway]:
        return iter(self._replicas)

    def all_in_service(self) -> None:
        """Wait until HAProxy sends clients to every replica."""
        until(lambda: self.front.in_service() == len(self))

    def _serving(self, number: int) -> ServedGateway:
        port, health = self._addresses[number]
        sections = dict(self._sections)
        listen = {"address": f"127.0.0.1:{port}", **sections.pop("listen", {})}
        config = self.site.write_config(
            listen=listen, health={"address": f"127.0.0.1:{health}"}, store=dict(self._store), **sections
        )
        own = config.rename(config.with_name(f"gateway-{number}.yaml"))
        return ServedGateway(self.site, own, {})


# What users type: all replicas are behind it.
EXTERNAL_URL = "https://gateway.example"
HTML = {"Accept": "text/html"}
PODS = "/api/v1/namespaces/team/pods"
REVOCATIONS = "/apis/ostiary.dev/v1/revocations"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}


@contextmanager
def replica(
    folder: Path,
    ca: trustme.CA,
    cluster: Cluster,
    store: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    **sections: Any,
) -> Iterator[ServedGateway]:
    """One replica by itself, once it is ready. Alice may read pods of the namespace team; root is an administrator."""
    site = Site(folder, ca)
    site.users("alice", "root")
    site.policy(role("team", "pods", User="alice"), role("", OURS, User="root"))
    sections = {
        "externalURL": EXTERNAL_URL,
        "limits": {"requestsPerSecond": 0, "failuresPerMinute": 0},
        "upstreams": [site.impersonating(cluster)],
        **sections,
    }
    with site.serving(store=store, environment=environment, **sections) as gateway:
        wait_until_ready(gateway)
        yield gateway


class ReplicaPair:
    """Two replicas, each with its own folder and configuration. Alice and Bob may read the pods of their cluster."""

    def __init__(self, folder: Path, ca: trustme.CA, store: Mapping[str, Any]) -> None:
        self._sites = [Site(folder / name, ca) for name in ("one", "other")]
        self._ca, self._store = ca, store
        for site in self._sites:
            site.users("alice", "bob")
            site.policy(role("team", "pods", User="alice"), role("team", "pods", User="bob"))
            # What is hashed with a random salt must be the same for both.
            (site.folder / "users").write_text((self._sites[0].folder / "users").read_text())

    @contextmanager
    def serving(self, **sections: Any) -> Iterator[list[ServedGateway]]:
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster(self._ca))
            cluster.add_namespace("team")
            sections |= {"store": self._store, "externalURL": EXTERNAL_URL}
            gateways = [
                stack.enter_context(site.serving(upstreams=[site.impersonating(cluster)], **sections))
                for site in self._sites
            ]
            for gateway in gateways:
                wait_until_ready(gateway)
            yield gateways


def wait_until_ready(gateway: ServedGateway) -> None:
    until(lambda: gateway.probe("/readyz").status_code == 200)


def sign_in_as_a_browser(gateway: ServedGateway) -> dict[str, str]:
    """The header with the cookies of a browser that has signed in."""
    with gateway.http() as http:
        form = {"username": "alice", "password": password("alice")}
        answer = http.post("/auth", data=form, headers=HTML)
        assert answer.status_code == 303, answer.text
        cookies = [value.partition(";")[0] for value in answer.headers.get_list("set-cookie")]
        return {"Cookie": "; ".join(cookie for cookie in cookies if not cookie.endswith("="))}


def revoke(gateway: Gateway, admin: str, kind: str, value: str) -> None:
    """Returns when it is acknowledged."""
    with gateway.http(admin) as http:
        assert http.post(REVOCATIONS, json={"type": kind, "value": value}).status_code == 201


def until_known(gateway: Gateway, token: str) -> int:
    """The status for *token* once the gateway can tell: its store may be slow to answer on a busy machine."""

    def known() -> int | None:
        status = gateway.get(PODS, token).status_code
        return None if status == 503 else status

    status = until(known, seconds=RECOVERY_SECONDS)
    assert status is not None
    return status


def wait_for_status(status: int, gateway: Gateway, token: str) -> None:
    """Until the gateway answers so to whoever presents *token*."""
    until(lambda: gateway.get(PODS, token).status_code == status, seconds=RECOVERY_SECONDS)


# --- load ---


@dataclass
class Load:
    """Clients that ask all the time, each on its own kept-alive connection, until the block ends.

    `failures` are answers that are no success, and connections that broke in the middle of a request.
    """

    ask: Callable[[httpx.Client], httpx.Response]
    client: Callable[[], httpx.Client]
    threads: int = 2
    answers: int = 0
    failures: list[str] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._over = threading.Event()
        self._running = [threading.Thread(target=self._run) for _ in range(self.threads)]
        for thread in self._running:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._running:
            thread.join(SECONDS)
            assert not thread.is_alive()

    def _run(self) -> None:
        with self.client() as http:
            # With a breath in between: replicas that start need the processor, too.
            while not self._over.wait(0.01):
                try:
                    answer = self.ask(http)
                except httpx.TransportError as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                    continue
                self.answers += 1
                if not answer.is_success:
                    self.failures.append(f"{answer.status_code} {answer.text[:300]}")
