"""Between replicas and their database packets are late, some are lost, and at times none arrives.

What was acknowledged holds after a failover, a replica that is cut off shuts its door and opens it again by itself.
Each round is one failover: ``ROUNDS=20 pytest tests/e2e/test_replicas_on_bad_networks.py`` is the long run.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, ServedGateway, role
from tests.support.ledger import Ledger
from tests.support.network import Host, Line, Network
from tests.support.postgresql import PostgresServer, running
from tests.support.postgresql_pair import PostgresPair
from tests.support.postgresql_store import store_section
from tests.support.redis import SENTINEL_NAME, RedisServer, RedisSite, redis_with_sentinels
from tests.support.replicas import (
    OURS,
    PODS,
    RECOVERY_SECONDS,
    Replicas,
    replica,
    revoke,
    until_known,
    wait_for_status,
)
from tests.support.waiting import until

ROUNDS = int(os.environ.get("ROUNDS", "1"))
MAX_STALE = 5.0
# Delay in seconds in each direction, and the share of packets that is lost: in turn, one for each round.
WEATHER = ((0.05, 0.05), (0.1, 0.1), (0.02, 0.2), (0.2, 0.05))
# A Sentinel must not take a lost packet for the loss of a server.
DOWN_AFTER_MILLISECONDS = 3000

pytestmark = [pytest.mark.slow, pytest.mark.needs("haproxy", "redis-server"), pytest.mark.timeout(150 + 120 * ROUNDS)]


class Lines:
    """Two hosts for servers, each connected to ours, where the replicas are, and to each other."""

    def __init__(self, network: Network) -> None:
        self.hosts = (network.add_host(), network.add_host())
        self.to_hosts = {host: network.connect(network.home, host) for host in self.hosts}
        self.between = network.connect(*self.hosts)

    def set(self, delay: float, loss: float) -> None:
        for line in (*self.to_hosts.values(), self.between):
            line.set(delay=delay, loss=loss)

    def of(self, host: Host) -> tuple[Line, Line]:
        return self.to_hosts[host], self.between

    @contextmanager
    def cut(self, *lines: Line) -> Iterator[None]:
        for line in lines:
            line.set(cut=True)
        try:
            yield
        finally:
            for line in lines:
                line.set(cut=False)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


@pytest.fixture(scope="module")
def cluster(network: Network, ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        yield cluster


@pytest.fixture
def lines(network: Network) -> Lines:
    return Lines(network)


# --- PostgreSQL ---


def test_a_primary_database_that_is_cut_off_is_replaced_and_nothing_acknowledged_is_lost(
    lines: Lines, cluster: Cluster, ca: trustme.CA, tmp_path: Path
) -> None:
    with _postgresql_pair(lines, ca) as pair:
        store = _with_tls(store_section(*pair.addresses, folder=tmp_path), ca, tmp_path)
        # A connection takes some eight round trips.
        store |= {"connectTimeout": "10s", "commandTimeout": "4s"}
        with _replicas(tmp_path, ca, cluster, store) as replicas:
            ledger = Ledger(replicas, PODS, user="alice", admin="root", max_stale=MAX_STALE)
            with ledger:
                ledger.progress()
                for weather in itertools.islice(itertools.cycle(WEATHER), ROUNDS):
                    lines.set(*weather)
                    ledger.progress()
                    old = pair.primary
                    assert old.place is not None
                    with lines.cut(*lines.of(old.place)):
                        # The one that is cut off lives on; nobody can write there, since its standby confirms nothing.
                        pair.promote()
                        ledger.progress()
                        old.kill()
                    lines.set(0.0, 0.0)
                    pair.follow()
                until(lambda: replicas.front.in_service() == len(replicas), seconds=RECOVERY_SECONDS)
            ledger.check()
            print(ledger.summary())


def test_replicas_that_are_cut_off_together_with_the_old_primary_shut_their_door(
    lines: Lines, network: Network, cluster: Cluster, ca: trustme.CA, tmp_path: Path
) -> None:
    """The old primary goes on answering them, and knows nothing of what is revoked at the new one."""
    old_host, new_host = lines.hosts
    # One replica uses the lines of plane 0, the other those of plane 1.
    _, to_new = (network.connect(network.home, host, plane=1) for host in lines.hosts)
    with ExitStack() as stack:
        pair = stack.enter_context(_postgresql_pair(lines, ca))
        section = _with_tls(store_section(*pair.addresses, folder=tmp_path), ca, tmp_path)
        ports = [(pair.primary.port, old_host), (pair.standby.port, new_host)]
        one, other = (
            stack.enter_context(
                replica(
                    tmp_path / f"replica-{plane}",
                    ca,
                    cluster,
                    {
                        **section,
                        **limits,
                        "hosts": [f"{host.address(plane)}:{port}" for port, host in ports],
                    },
                    tokens={"maxStale": stale},
                )
            )
            # The first one follows the failover, and has time for that; the other one is to shut its door.
            for plane, limits, stale in ((0, {}, "30s"), (1, {"commandTimeout": "1s"}, "2s"))
        )
        root, kept, revoked = one.login("root").token, one.login("alice").token, one.login("alice")
        for token in (kept, revoked.token):
            wait_for_status(200, other, token)
        with lines.cut(lines.to_hosts[old_host], lines.between, to_new):
            pair.promote()
            until(lambda: one.probe("/readyz").status_code == 200, seconds=RECOVERY_SECONDS)
            revoke(one, root, "session", revoked.session)
            assert _last_accepted(other, revoked.token) <= 2.0
            assert other.get(PODS, kept).status_code == 503
            assert one.get(PODS, kept).status_code == 200
            pair.standby.kill()
        wait_for_status(200, other, kept)
        assert until_known(other, revoked.token) == 401


@contextmanager
def _postgresql_pair(lines: Lines, ca: trustme.CA) -> Iterator[PostgresPair]:
    first, second = lines.hosts
    with running(place=first) as primary:
        primary.use_tls(ca, *(host.address(plane) for host in lines.hosts for plane in (0, 1)))
        with primary.standby(synchronous=True, place=second) as standby:
            yield PostgresPair(primary, standby)


# --- Redis ---


def test_a_redis_primary_dies_on_a_bad_network_and_nothing_that_a_replica_confirmed_is_lost(
    lines: Lines, network: Network, cluster: Cluster, ca: trustme.CA, tmp_path: Path
) -> None:
    with (
        _redis(lines, network, tmp_path) as redis,
        _replicas(
            tmp_path / "gateways", ca, cluster, _at_sentinels(redis, waitReplicas=1, timeout="4s", waitTimeout="2s")
        ) as replicas,
    ):
        ledger = Ledger(replicas, PODS, user="alice", admin="root", max_stale=MAX_STALE)
        with ledger:
            ledger.progress()
            for weather in itertools.islice(itertools.cycle(WEATHER), ROUNDS):
                lines.set(*weather)
                ledger.progress()
                old = redis.primary()
                old.kill()
                lines.set(0.0, 0.0)
                redis.wait_for_failover(old)
                # Until it has a replica again, the new primary can confirm nothing.
                old.start()
                redis.wait_for_replicas()
                ledger.progress()
            until(lambda: replicas.front.in_service() == len(replicas), seconds=RECOVERY_SECONDS)
        ledger.check()
        print(ledger.summary())


def test_without_confirmation_a_redis_failover_loses_only_what_no_replica_had_received(
    lines: Lines, network: Network, cluster: Cluster, ca: trustme.CA, tmp_path: Path
) -> None:
    with (
        _redis(lines, network, tmp_path) as redis,
        _replicas(tmp_path / "gateways", ca, cluster, _at_sentinels(redis)) as replicas,
    ):
        one, other = replicas
        root = one.login("root").token
        received = [one.login("alice") for _ in range(5)]
        old, (standby,) = redis.primary(), redis.replicas()
        _wait_until_received(old, standby)
        with lines.cut(lines.between):
            lost = [one.login("alice") for _ in range(3)]
            # What a gateway knows to be revoked it writes back, though the new primary has never heard of it.
            revoked = received.pop()
            revoke(one, root, "session", revoked.session)
            wait_for_status(401, other, revoked.token)
            old.kill()
            redis.wait_for_failover(old)
        for each in replicas:
            for login in received:
                wait_for_status(200, each, login.token)
            for login in (*lost, revoked):
                wait_for_status(401, each, login.token)


@contextmanager
def _redis(lines: Lines, network: Network, folder: Path) -> Iterator[RedisSite]:
    with redis_with_sentinels(
        folder / "redis",
        replicas=1,
        places=lines.hosts,
        sentinels_at=network.home,
        down_after=DOWN_AFTER_MILLISECONDS,
    ) as site:
        yield site


def _at_sentinels(redis: RedisSite, **more: Any) -> dict[str, Any]:
    sentinel = {"name": SENTINEL_NAME, "addresses": list(redis.sentinel_addresses)}
    return {"type": "redis", "sentinel": sentinel, "insecure": True, **more}


def _wait_until_received(primary: RedisServer, standby: RedisServer) -> None:
    written = int(str(primary.info("replication")["master_repl_offset"]))
    until(lambda: int(str(standby.info("replication")["slave_repl_offset"])) >= written)


# --- a replica that is cut off ---


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_a_replica_that_is_cut_off_shuts_its_door_in_time_and_opens_it_again_by_itself(
    network: Network, cluster: Cluster, ca: trustme.CA, tmp_path: Path, kind: str
) -> None:
    host = network.add_host()
    network.connect(network.home, host)
    # The other replica has a line of its own to the same server.
    line = network.connect(network.home, host, plane=1)
    stale = 2.0
    with ExitStack() as stack:
        start = _one_postgresql if kind == "postgresql" else _one_redis
        stores = stack.enter_context(start(host, ca, tmp_path))
        one, other = (
            stack.enter_context(replica(tmp_path / name, ca, cluster, store, tokens={"maxStale": f"{seconds:g}s"}))
            for name, store, seconds in zip(("one", "other"), stores, (60.0, stale), strict=True)
        )
        root, kept, revoked = one.login("root").token, one.login("alice").token, one.login("alice")
        for token in (kept, revoked.token):
            wait_for_status(200, other, token)
        line.set(cut=True)
        revoke(one, root, "session", revoked.session)
        assert _last_accepted(other, revoked.token) <= stale
        until(lambda: other.probe("/readyz").status_code == 503)
        # Not "no", but "could not ask".
        assert other.get(PODS, kept).status_code == 503
        assert one.get(PODS, kept).status_code == 200
        line.set(cut=False)
        until(lambda: other.probe("/readyz").status_code == 200)
        wait_for_status(200, other, kept)
        assert until_known(other, revoked.token) == 401


def _last_accepted(gateway: ServedGateway, token: str) -> float:
    """How long from now on a token is accepted; in seconds, by when it was presented."""
    began = last = time.monotonic()
    while True:
        asked = time.monotonic()
        if gateway.get(PODS, token).status_code != 200 or asked - began > SECONDS:
            return last - began
        last = asked


@contextmanager
def _one_postgresql(host: Host, ca: trustme.CA, folder: Path) -> Iterator[list[Mapping[str, Any]]]:
    with running(place=host) as server:
        server.use_tls(ca, host.address(), host.address(1))
        section = _with_tls(store_section(_address(server), folder=folder), ca, folder)
        patient, hasty = {"connectTimeout": "30s", "commandTimeout": "30s"}, {"commandTimeout": "1s"}
        yield [
            {**section, **limits, "hosts": [f"{host.address(plane)}:{server.port}"]}
            for plane, limits in enumerate((patient, hasty))
        ]


def _address(server: PostgresServer) -> str:
    return f"{server.host}:{server.port}"


@contextmanager
def _one_redis(host: Host, ca: trustme.CA, folder: Path) -> Iterator[list[Mapping[str, Any]]]:
    server = RedisServer(folder / "redis", place=host)
    try:
        server.start()
        section = {"type": "redis", "insecure": True, "waitTimeout": "500ms"}
        yield [
            {**section, "timeout": timeout, "address": f"{host.address(plane)}:{server.port}"}
            for plane, timeout in enumerate(("30s", "1s"))
        ]
    finally:
        server.end()


# --- what all have in common ---


def _with_tls(section: dict[str, Any], ca: trustme.CA, folder: Path) -> dict[str, Any]:
    authority = folder / "database-ca.pem"
    ca.cert_pem.write_to_path(str(authority))
    return {**section, "tls": {"ca": str(authority)}}


@contextmanager
def _replicas(folder: Path, ca: trustme.CA, cluster: Cluster, store: Mapping[str, Any]) -> Iterator[Replicas]:
    replicas = Replicas(
        folder,
        ca,
        store=store,
        count=2,
        tokens={"maxStale": f"{MAX_STALE:.0f}s", "sessionsPerUser": 0},
        limits={"requestsPerSecond": 0, "failuresPerMinute": 0},
    )
    replicas.site.users("alice", "root")
    replicas.site.policy(role("team", "pods", User="alice"), role("", OURS, User="root"))
    replicas.use(upstreams=[replicas.site.impersonating(cluster)])
    with replicas:
        yield replicas
