"""Three replicas behind HAProxy: one is lost, all are restarted, and access is withdrawn everywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, password, role
from tests.support.postgresql import PostgresServer, running
from tests.support.postgresql_store import store_section
from tests.support.replicas import Load, Replicas
from tests.support.waiting import until

PODS = "/api/v1/namespaces/team/pods"
ADMIN = "/apis/ostiary.dev/v1"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}

pytestmark = [pytest.mark.slow, pytest.mark.needs("haproxy")]


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def replicas(
    ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory, cluster: Cluster, database: PostgresServer
) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    built = Replicas(
        folder,
        ca,
        store=store_section(f"{database.host}:{database.port}", folder=folder),
        listen={"shutdownDelay": "1s", "drain": "1s", "tls": {"certificate": "server.pem", "key": "server.key"}},
        limits={"requestsPerSecond": 0},
    )
    built.site.users("alice", "carol", "root")
    built.site.policy(role("team", "pods", User="alice"), role("", OURS, User="root"))
    built.use(upstreams=[built.site.impersonating(cluster)])
    with built:
        yield built


def test_a_session_is_good_at_every_replica_and_withdrawn_at_every_replica(replicas: Replicas) -> None:
    token, root = replicas.front.login("alice").token, replicas.front.login("root").token
    for replica in replicas:
        assert replica.get(PODS, token).status_code == 200
    with replicas[0].http(root) as http:
        assert http.post(f"{ADMIN}/revocations", json={"type": "user", "value": "alice"}).status_code == 201
    until(lambda: all(replica.get(PODS, token).status_code == 401 for replica in replicas))


def test_a_replica_is_killed_and_nobody_is_signed_out(replicas: Replicas) -> None:
    token = replicas.front.login("alice").token
    for replica in replicas:
        replica.kill()
        until(lambda: replicas.front.in_service() == len(replicas) - 1)
        for _ in range(len(replicas)):
            assert replicas.front.get(PODS, token).status_code == 200
        replica.start()
        replicas.all_in_service()


def test_a_rolling_restart_under_load_fails_no_request_and_signs_nobody_out(
    replicas: Replicas, cluster: Cluster
) -> None:
    front, token = replicas.front, replicas.front.login("alice").token
    with ExitStack() as stack:
        reading = stack.enter_context(Load(lambda http: http.get(PODS), lambda: front.http(token)))
        signing_in = stack.enter_context(
            Load(lambda http: http.get("/auth", auth=("carol", password("carol"))), front.http, threads=1)
        )
        watch = stack.enter_context(Watch(replicas, cluster, token))
        for replica in replicas:
            replica.stop()
            replica.start()
            replicas.all_in_service()
        cluster.add_pod("team", "last")
        until(lambda: "last" in watch.seen)
    assert (reading.failures, signing_in.failures, watch.failures) == ([], [], [])
    assert reading.answers > 100
    assert watch.connections > 1


class Watch:
    """A client that watches pods, and connects again whenever the stream ends, as every Kubernetes client does."""

    def __init__(self, replicas: Replicas, cluster: Cluster, token: str) -> None:
        self._front, self._cluster, self._token = replicas.front, cluster, token
        self.seen: set[str] = set()
        self.connections = 0
        self.failures: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        # The next event wakes the thread up.
        self._cluster.add_pod("team", "one-more")
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with self._front.http(self._token) as http:
            while not self._over.is_set():
                try:
                    self._watch_once(http)
                except httpx.TransportError as error:
                    # A stream may be cut; a connection must not be refused.
                    if isinstance(error, httpx.ConnectError) and not self._over.is_set():
                        self.failures.append(repr(error))

    def _watch_once(self, http: httpx.Client) -> None:
        with http.stream("GET", f"{PODS}?watch=true") as response:
            if response.status_code != 200:
                self.failures.append(str(response.status_code))
                return
            self.connections += 1
            for line in response.iter_lines():
                self.seen.update(name for name in ("web", "last") if f'"name":"{name}"' in line.replace(" ", ""))
                if self._over.is_set():
                    return
