"""Real Redis servers for tests: one server, a primary with replicas and three Sentinels, or a cluster of three nodes.

    with redis_server(folder) as server: ...
    with redis_with_sentinels(folder) as site: ...
    with redis_cluster(folder) as nodes: ...

They listen on loopback, on free ports, and end with the ``with``. `kill` is kill -9, `pause` is SIGSTOP. A server keeps
its port and its folder: `start` after `kill` is a restart with what reached the disk.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
from redis import Redis
from redis.exceptions import RedisError

from ostiary_gateway.stores.redis.settings import RedisSettings
from tests.support.network import Host
from tests.support.ports import free_port
from tests.support.tiers import missing
from tests.support.waiting import until

SECONDS = 60.0
# The name that the Sentinels have for the primary.
SENTINEL_NAME = "ostiary"
# A primary that does not answer for so long is replaced.
DOWN_AFTER_MILLISECONDS = 500
_QUORUM = 2
_SLOTS = 16384


def patient_settings(**changes: Any) -> RedisSettings:
    """Settings whose time limits a busy machine does not reach. Tests of the limits set their own."""
    return RedisSettings(**{"timeout": 60.0, "wait_timeout": 30.0, **changes})


@dataclass
class RedisServer:
    """One process, ``redis-server`` or with `sentinel` a Sentinel. `options` are lines of its configuration."""

    folder: Path
    options: Sequence[str] = ()
    sentinel: bool = False
    password: str | None = None
    tls: Path | None = None
    # The namespace that it runs in; else it listens on loopback.
    place: Host | None = None
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return "127.0.0.1" if self.place is None else self.place.address()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def client(self) -> Redis:
        """A connection of the test's own, past everything that is tested. Close it."""
        options: dict[str, Any] = {}
        if self.tls is not None:
            files = {"ca_certs": "ca", "certfile": "tls", "keyfile": "key"}
            options = {f"ssl_{name}": str(self.tls / f"{file}.pem") for name, file in files.items()}
            options |= {"ssl": True, "ssl_check_hostname": False}
        return Redis(self.host, self.port, password=self.password, socket_timeout=SECONDS, protocol=2, **options)

    def ask(self, *command: str | int | bytes) -> object:
        with closing(self.client()) as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def info(self, section: str) -> dict[str, object]:
        with closing(self.client()) as client:
            return dict(client.info(section))

    def start(self) -> None:
        config = self.folder / "redis.conf"
        if not config.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            config.write_text("\n".join(self._config()) + "\n")
        program = "redis-sentinel" if self.sentinel else "redis-server"
        if shutil.which(program) is None:
            missing(program)
        with open(self.folder / "log", "ab") as log:
            command = [*(self.place.prefix if self.place is not None else ()), program, str(config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self._answers, f"{program} answers: see {self.folder / 'log'}")

    def _config(self) -> Iterator[str]:
        # In a namespace of its own it has several addresses, and only the test can reach them.
        yield from ("bind 127.0.0.1",) if self.place is None else ("bind 0.0.0.0", "protected-mode no")
        yield f"port {0 if self.tls else self.port}"
        yield f"dir {self.folder}"
        if self.tls is not None:
            yield f"tls-port {self.port}"
            for name, file in (("ca-cert", "ca"), ("cert", "tls"), ("key", "key")):
                yield f"tls-{name}-file {self.tls / file}.pem"
            yield "tls-auth-clients optional"
        if self.password is not None:
            yield f"requirepass {self.password}"
        if not self.sentinel:
            # What is acknowledged survives kill -9; the tests need no fsync.
            yield from ("save ''", "appendonly yes", "appendfsync no", "repl-diskless-sync-delay 0")
        yield from self.options

    def _answers(self) -> bool:
        assert self.process is not None, "it was started"
        if self.process.poll() is not None:
            raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])
        try:
            self.ask("PING")
        except RedisError:
            return False
        return True

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None, "it was started"
        self.process.kill()
        self.process.wait(SECONDS)

    def pause(self) -> None:
        """It keeps its connections and answers nothing. Returns when it has stopped."""
        assert self.process is not None, "it was started"
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        assert self.process is not None, "it was started"
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        if self.is_running:
            self.kill()


@contextmanager
def redis_server(
    folder: Path, *options: str, password: str | None = None, tls: Path | None = None
) -> Iterator[RedisServer]:
    """One server. *tls* is a folder from `write_certificates`."""
    server = RedisServer(folder, options, password=password, tls=tls)
    try:
        server.start()
        yield server
    finally:
        server.end()


def write_certificates(folder: Path, ca: trustme.CA, *names: str) -> Path:
    """``ca.pem``, ``tls.pem`` and ``key.pem`` for a server with these names; 127.0.0.1 if none is given."""
    folder.mkdir(parents=True, exist_ok=True)
    leaf = ca.issue_cert(*(names or ("127.0.0.1",)))
    (folder / "tls.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    return folder


# --- a primary, its replicas, and Sentinels that watch them ---


@dataclass
class RedisSite:
    servers: list[RedisServer]
    sentinels: list[RedisServer]

    @property
    def sentinel_addresses(self) -> tuple[str, ...]:
        return tuple(sentinel.address for sentinel in self.sentinels)

    def primary(self) -> RedisServer:
        """The server that the Sentinels name."""
        for sentinel in self.sentinels:
            try:
                answer = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SENTINEL_NAME)
            except RedisError:
                continue
            assert isinstance(answer, list)
            address = f"{answer[0].decode()}:{int(answer[1])}"
            return next(server for server in self.servers if server.address == address)
        raise RuntimeError("no Sentinel answers")

    def replicas(self) -> list[RedisServer]:
        primary = self.primary()
        return [server for server in self.servers if server is not primary]

    def wait_for_failover(self, old: RedisServer) -> RedisServer:
        """The primary that has taken the place of *old*, once all other servers follow it.

        Before that, a replica that has not been told of it may still confirm what *old* acknowledges, should that come
        back so soon: see docs/decisions/0043.
        """
        others = [server for server in self.servers if server is not old and server.is_running]
        until(lambda: self.primary() is not old and _is_primary(self.primary()), "a failover")
        until(lambda: _online_replicas(self.primary()) >= len(others) - 1, "the others follow the new one")
        return self.primary()

    def wait_for_replicas(self, count: int | None = None) -> None:
        """Until so many replicas (all of them) follow the primary, and every Sentinel knows the whole site."""
        expected = len(self.servers) - 1 if count is None else count
        until(lambda: _online_replicas(self.primary()) >= expected, "the replicas follow the primary")
        until(lambda: all(self._knows_all(each) for each in self.sentinels), "the Sentinels know all")

    def _knows_all(self, sentinel: RedisServer) -> bool:
        answer = sentinel.ask("SENTINEL", "MASTER", SENTINEL_NAME)
        assert isinstance(answer, list)
        facts: dict[bytes, bytes] = dict(zip(answer[::2], answer[1::2], strict=True))
        return (
            int(facts[b"num-other-sentinels"]) == len(self.sentinels) - 1
            and int(facts[b"num-slaves"]) >= len(self.servers) - 1
            and b"down" not in facts[b"flags"]
        )


@contextmanager
def redis_with_sentinels(
    folder: Path,
    *options: str,
    replicas: int = 2,
    password: str | None = None,
    places: Sequence[Host | None] = (None, None, None),
    sentinels_at: Host | None = None,
    down_after: int = DOWN_AFTER_MILLISECONDS,
) -> Iterator[RedisSite]:
    """A primary with *replicas*, and three Sentinels. With *password*, the servers ask for it; the Sentinels do not."""
    own = (*options, *_masterauth(password))
    first = RedisServer(folder / "server-0", own, password=password, place=places[0])
    follow = (*own, f"replicaof {first.host} {first.port}")
    servers = [first] + [
        RedisServer(folder / f"server-{number}", follow, password=password, place=places[number])
        for number in range(1, replicas + 1)
    ]
    watch = tuple(_watch(first, password, down_after))
    sentinels = [
        RedisServer(folder / f"sentinel-{number}", watch, sentinel=True, place=sentinels_at) for number in range(3)
    ]
    site = RedisSite(servers, sentinels)
    with ExitStack() as ending:
        for server in (*servers, *sentinels):
            ending.callback(server.end)
            server.start()
        site.wait_for_replicas()
        yield site


def _masterauth(password: str | None) -> Sequence[str]:
    return () if password is None else (f"masterauth {password}",)


def _watch(primary: RedisServer, password: str | None, down_after: int) -> Iterator[str]:
    yield f"sentinel monitor {SENTINEL_NAME} {primary.host} {primary.port} {_QUORUM}"
    yield f"sentinel down-after-milliseconds {SENTINEL_NAME} {down_after}"
    yield f"sentinel failover-timeout {SENTINEL_NAME} 3000"
    yield f"sentinel parallel-syncs {SENTINEL_NAME} 2"
    if password is not None:
        yield f"sentinel auth-pass {SENTINEL_NAME} {password}"


def _is_primary(server: RedisServer) -> bool:
    try:
        return server.info("replication")["role"] == "master"
    except RedisError:
        return False


def _online_replicas(server: RedisServer) -> int:
    try:
        facts = server.info("replication")
    except RedisError:
        return 0
    replicas = [value for name, value in facts.items() if name.startswith("slave")]
    return sum(isinstance(replica, dict) and replica.get("state") == "online" for replica in replicas)


# --- a cluster ---


@contextmanager
def redis_cluster(folder: Path, *options: str, nodes: int = 3) -> Iterator[list[RedisServer]]:
    """So many primaries, each with its part of the slots."""
    servers = [
        RedisServer(folder / f"node-{number}", (*options, "cluster-enabled yes", f"cluster-port {free_port()}"))
        for number in range(nodes)
    ]
    with ExitStack() as ending:
        for server in servers:
            ending.callback(server.end)
            server.start()
        # redis-cli joins nodes, but knows nothing of a bus port of its own: we do it as it does.
        for number, server in enumerate(servers):
            server.ask("CLUSTER", "ADDSLOTSRANGE", *_share_of_slots(number, nodes))
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            bus = next(line.split()[1] for line in server.options if line.startswith("cluster-port"))
            for other in servers[:number]:
                other.ask("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        until(lambda: all(_cluster_is_whole(server, nodes) for server in servers), "the cluster forms")
        yield servers


def _share_of_slots(number: int, nodes: int) -> tuple[int, int]:
    return number * _SLOTS // nodes, (number + 1) * _SLOTS // nodes - 1


def _cluster_is_whole(server: RedisServer, nodes: int) -> bool:
    answer = server.ask("CLUSTER", "INFO")
    assert isinstance(answer, bytes)
    return b"cluster_state:ok" in answer and b"cluster_known_nodes:%d\r" % nodes in answer
