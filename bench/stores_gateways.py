"""What a store costs the gateways in front of it: a token in memory, a revocation over HTTP, and one replica more.

Whole gateways in processes of their own, one configuration but for the store. Called by `bench.stores`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import httpx

from bench.gateway import CONNECTIONS, LUA, Sample, sample, status_of
from bench.instructions import Counter, valgrind
from bench.pace import pace
from bench.peers import LOAD_CORE, MEASURED_CORE, Peer, backend, free_port, started
from bench.table import Row
from tests.support.gateway import role
from tests.support.postgresql import PgBouncer, PostgresServer, pgbouncer, running
from tests.support.postgresql_store import store_section
from tests.support.redis import RedisServer, redis_server

USERS, PATHS, REPLICAS = 50, 20, 3
REVOCATIONS, SILENT_REVOCATIONS = pace(300, quick=5), pace(20, quick=2)
# Many short turns: of a few the neighbours of a shared machine decide the median.
ROUNDS, TURN_SECONDS, COUNTED = pace(30, quick=2), 1, pace(1000, quick=50)
ALL_CORES = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
MAX_STALE, LIMIT_SECONDS = 5.0, 10.0
PODS = "/api/v1/namespaces/team/pods"
REVOCATION_PATH = "/apis/ostiary.dev/v1/revocations"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
# Between two questions whether a token is still good, so that asking takes no core from those who work.
PAUSE_SECONDS = 0.001
# A user at Redis who may do everything but listen.
DEAF = "deaf"
_numbers = itertools.count()


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        # What is started from here on runs on the core of the load, unless it is told otherwise.
        stack.enter_context(_on_core(LOAD_CORE))
        database = stack.enter_context(running(config="fsync = on\n"))
        redis = stack.enter_context(redis_server(folder / "redis", "appendfsync everysec"))
        pooler = stack.enter_context(pgbouncer(database, mode="transaction", connections=10))
        upstream = stack.enter_context(backend(folder))
        site = GatewaySite(folder, upstream)
        yield from _cached_tokens(site, database, redis)
        yield from _revocations(site, database, redis, pooler)
        yield from _three_replicas(site, database)


@contextmanager
def _on_core(core: str) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {int(core)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class GatewaySite:
    """Users, policy and upstream, the same for every gateway."""

    def __init__(self, folder: Path, upstream: int) -> None:
        self.folder, self._upstream = folder, upstream
        names = ["root", *(f"user-{number}" for number in range(USERS))]
        hashed = bcrypt.hashpw(b"password", bcrypt.gensalt(4)).decode()
        (folder / "users").write_text("".join(f"{name}:{hashed}\n" for name in names))
        readers = [manifest for name in names for manifest in role("team", "pods", User=name)]
        manifests = [*readers, *role("", OURS, User="root")]
        (folder / "policy.yaml").write_text("\n---\n".join(json.dumps(manifest) for manifest in manifests))

    @contextmanager
    def gateway(
        self, name: str, store: Mapping[str, Any], *, core: str, behind: Sequence[str] = (), home: Path | None = None
    ) -> Iterator[Peer]:
        """A gateway with one worker. *name* is what the figures call it; it is started *behind* another command."""
        home = home or self.folder / f"gateway-{next(_numbers)}"
        home.mkdir()
        port = free_port()
        upstream = {"name": "b", "server": f"http://127.0.0.1:{self._upstream}", "attributes": {"type": "kubernetes"}}
        config = {
            "apiVersion": "ostiary.dev/v1",
            "kind": "Gateway",
            "externalURL": "https://gateway.example",
            "listen": {"address": f"127.0.0.1:{port}"},
            "health": {"address": f"127.0.0.1:{free_port()}"},
            "store": store,
            "tokens": {"sessionsPerUser": 0, "maxStale": f"{MAX_STALE:.0f}s"},
            "limits": {"requestsPerSecond": 0, "failuresPerMinute": 0},
            "identity": [{"name": "staff", "type": "htpasswd", "path": str(self.folder / "users")}],
            "authorization": {
                "chain": [{"name": "policy", "type": "rbac", "paths": [str(self.folder / "policy.yaml")]}]
            },
            "upstreams": [{**upstream, "connections": 20000}],
            "audit": {"log": {"path": "audit.log"}},
        }
        (home / "gateway.yaml").write_text(json.dumps(config))
        command = [*behind, sys.executable, "-m", "ostiary_gateway", "serve", "--config", str(home / "gateway.yaml")]
        with started(command, core=core, port=port, cwd=home) as process:
            yield Peer(name, port, process.pid)


def sign_in(gateway: Peer, user: str) -> tuple[str, str]:
    """The token and the session."""
    answer = httpx.get(f"http://127.0.0.1:{gateway.port}/auth", auth=(user, "password"), trust_env=False, timeout=60)
    answer.raise_for_status()
    said = answer.json()
    return str(said["token"]), str(said["session"])


def _load_script(site: GatewaySite, gateway: Peer) -> Path:
    """wrk's script: every user asks for every path, with tokens of this gateway's store."""
    targets = site.folder / f"targets-{gateway.port}"
    tokens = [sign_in(gateway, f"user-{number}")[0] for number in range(USERS)]
    lines = [f"{token} {PODS}/web-{number}\n" for number in range(PATHS) for token in tokens]
    targets.write_text("".join(lines))
    script = targets.with_suffix(".lua")
    script.write_text(LUA % targets)
    return script


# --- a token in memory ---


def _cached_tokens(site: GatewaySite, database: PostgresServer, redis: RedisServer) -> Iterator[Row]:
    """Requests whose tokens the gateway remembers: instructions, and in rounds, each store right after the others."""
    stores: dict[str, Mapping[str, Any]] = {
        "memory": {"type": "memory"},
        "SQLite": {"type": "sqlite", "path": "tokens.db"},
        "PostgreSQL 15": store_section(f"{database.host}:{database.port}", folder=site.folder),
        "Redis 7": {"type": "redis", "address": redis.address, "prefix": "cached"},
    }
    counted = {name: _instructions(site, name, store) for name, store in stores.items()}
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(site.gateway(name, store, core=MEASURED_CORE)) for name, store in stores.items()
        ]
        samples = _samples({gateway: _load_script(site, gateway) for gateway in gateways})
    base, *others = gateways
    for gateway in others:
        instructions = counted[gateway.name]
        yield Row(
            f"a token in memory, {gateway.name} / memory: instructions a request",
            f"{instructions / counted[base.name]:.3f} ({instructions / 1000:,.1f} thousand)",
            "<= 1.03",
        )
        pairs = list(zip(samples[gateway], samples[base], strict=True))
        cpu = statistics.median(ours.cpu_us / memory.cpu_us for ours, memory in pairs)
        slower = statistics.median(memory.per_second / ours.per_second for ours, memory in pairs)
        each = statistics.median(ours.cpu_us for ours, _ in pairs)
        yield Row(
            f"the same: CPU time a request, median of {ROUNDS} pairs",
            f"{cpu:.3f} ({each:.0f} us; by the clock {slower:.3f})",
        )


def _instructions(site: GatewaySite, name: str, store: Mapping[str, Any]) -> float:
    home = site.folder / f"counted-{next(_numbers)}"
    with site.gateway(name, store, core=ALL_CORES, behind=valgrind(home), home=home) as gateway:
        token, _ = sign_in(gateway, "user-0")
        counter = Counter(gateway.pid, home)
        _ask(gateway, token, COUNTED)
        counter.start()
        # The first ones are translated by valgrind.
        _ask(gateway, token, COUNTED)
        # The least of a few: what happens now and then in the background is not what a request costs.
        return min(counter.instructions_for(lambda: _ask(gateway, token, COUNTED)) for _ in range(3)) / COUNTED


def _ask(gateway: Peer, token: str, count: int) -> None:
    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        for _ in range(count):
            assert await status_of(reader, writer, _request(token)) == 200
        writer.close()

    asyncio.run(ask())


def _request(token: str) -> str:
    return f"GET {PODS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"


def _samples(scripts: Mapping[Peer, Path]) -> dict[Peer, list[Sample]]:
    """In each round another one begins, so that none always has the place after the same one."""
    for gateway, script in scripts.items():
        sample(gateway, script)
    samples: dict[Peer, list[Sample]] = {gateway: [] for gateway in scripts}
    for number in range(ROUNDS):
        order = list(scripts)
        first = number % len(order)
        for gateway in (*order[first:], *order[:first]):
            samples[gateway].append(sample(gateway, scripts[gateway], seconds=TURN_SECONDS))
    return samples


# --- revoked at one, refused at another ---


def _revocations(site: GatewaySite, database: PostgresServer, redis: RedisServer, pooler: PgBouncer) -> Iterator[Row]:
    address = f"{database.host}:{database.port}"
    postgresql = store_section(address, folder=site.folder)
    at_redis = {"type": "redis", "address": redis.address, "prefix": "revoked"}
    # A pooler in transaction mode takes a LISTEN and passes no notification on.
    silent_postgresql = {**postgresql, "listen": {"hosts": [f"{pooler.host}:{pooler.port}"]}}
    redis.ask("ACL", "SETUSER", DEAF, "on", f">{DEAF}", "~*", "+@all", "resetchannels")
    (site.folder / "deaf-password").write_text(DEAF)
    silent_redis = {**at_redis, "username": DEAF, "passwordFile": str(site.folder / "deaf-password")}
    for name, store, silent in (
        ("PostgreSQL 15", postgresql, silent_postgresql),
        ("Redis 7", at_redis, silent_redis),
    ):
        lags = _lags_between(site, store, store, REVOCATIONS)
        middle, late = statistics.median(lags), statistics.quantiles(lags, n=100)[98]
        what = f"{name}: revoked at one gateway until refused by another, over HTTP"
        yield Row(f"{what}, median of {REVOCATIONS}", f"{middle * 1000:.1f} ms", "< 20 ms")
        yield Row(f"{what}, 99 of 100", f"{late * 1000:.1f} ms", "< 200 ms")
        lags = _lags_between(site, store, silent, SILENT_REVOCATIONS)
        text = f"median {statistics.median(lags):.2f} s, worst {max(lags):.2f} s"
        yield Row(f"{name}: the same, with every notification lost", text, f"< {MAX_STALE:.0f} s (maxStale)")


def _lags_between(site: GatewaySite, store: Mapping[str, Any], other: Mapping[str, Any], count: int) -> Sequence[float]:
    with (
        site.gateway("one", store, core=ALL_CORES) as one,
        site.gateway("other", other, core=ALL_CORES) as another,
    ):
        admin, _ = sign_in(one, "root")
        return [asyncio.run(_lag(one, another, admin, *sign_in(one, "user-0"))) for _ in range(count)]


async def _lag(one: Peer, another: Peer, admin: str, token: str, session: str) -> float:
    """From when the revocation is sent to one gateway until another one refuses a token that it had remembered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", another.port)
    request = _request(token)
    assert await status_of(reader, writer, request) == 200
    async with asyncio.timeout(LIMIT_SECONDS):
        began = time.perf_counter()
        revoking = asyncio.create_task(_revoke(one, admin, session))
        try:
            while await status_of(reader, writer, request) == 200:
                await asyncio.sleep(PAUSE_SECONDS)
        except (ConnectionResetError, asyncio.IncompleteReadError):
            # The request that was under way just then was cut: that, too, is the effect.
            pass
        lag = time.perf_counter() - began
        await revoking
    writer.close()
    return lag


async def _revoke(gateway: Peer, admin: str, session: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    body = json.dumps({"type": "session", "value": session})
    head = f"POST {REVOCATION_PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {admin}\r\n"
    assert await status_of(reader, writer, f"{head}Content-Length: {len(body)}\r\n\r\n{body}") == 201
    writer.close()


# --- one replica, and three ---

_HAPROXY = """
global
  nbthread 1
defaults
  mode tcp
  timeout client 60s
  timeout server 60s
  timeout connect 5s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  balance roundrobin
"""


def _three_replicas(site: GatewaySite, database: PostgresServer) -> Iterator[Row]:
    """One replica and three behind HAProxy on all cores; then each of the three in turn, with a core of its own."""
    store = store_section(f"{database.host}:{database.port}", folder=site.folder)
    together, in_turn = [], []
    with ExitStack() as stack:
        replicas = [stack.enter_context(site.gateway("replica", store, core=ALL_CORES)) for _ in range(REPLICAS)]
        whole = stack.enter_context(_haproxy(site.folder, replicas))
        single = [stack.enter_context(_haproxy(site.folder, [each])) for each in replicas]
        script = _load_script(site, replicas[0])
        for front in (whole, *single):
            sample(front, script)
        for _ in range(ROUNDS):
            one = sample(single[0], script, seconds=TURN_SECONDS)
            all_of_them = sample(whole, script, seconds=TURN_SECONDS, connections=CONNECTIONS * REPLICAS)
            together.append(all_of_them.per_second / one.per_second)
        for each in replicas:
            _pin(each, MEASURED_CORE)
        for _ in range(ROUNDS):
            rates = [sample(front, script, seconds=TURN_SECONDS).per_second for front in single]
            in_turn.append(sum(rates) / rates[0])
    cores = ALL_CORES.count(",") + 1
    yield Row(
        f"{REPLICAS} replicas behind HAProxy / one, load, HAProxy, upstream and PostgreSQL on the same {cores} cores",
        f"{statistics.median(together):.2f}",
        ">= 2.4 where cores allow",
    )
    yield Row(
        f"each of {REPLICAS} replicas in turn with a core of its own: all together / one",
        f"{statistics.median(in_turn):.2f}",
        ">= 2.4",
    )


def _pin(peer: Peer, core: str) -> None:
    for thread in Path(f"/proc/{peer.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {int(core)})


@contextmanager
def _haproxy(folder: Path, replicas: Sequence[Peer]) -> Iterator[Peer]:
    port = free_port()
    config = folder / f"haproxy-{port}.cfg"
    servers = "".join(f"  server s{number} 127.0.0.1:{each.port}\n" for number, each in enumerate(replicas))
    config.write_text(_HAPROXY.format(port=port) + servers)
    with started(["haproxy", "-db", "-f", str(config)], core=ALL_CORES, port=port, cwd=folder) as process:
        yield Peer("haproxy", port, process.pid)
