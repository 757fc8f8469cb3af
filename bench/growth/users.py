"""What it costs that requests come from ever more users, in rotation: until their tokens no longer fit into memory.

Every user has one token and one request, and the users take turns, which is the hardest order for whoever remembers:
beyond what the gateway's caches hold, whatever comes was forgotten just before. Beside plain nginx, which knows no
users, and kube-rbac-proxy, which asks about ten new ones a second, so that it is measured with few.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench.gateway import Sample, gateway, sample
from bench.growth.curve import growth_plot, growth_row
from bench.growth.memory import resident
from bench.growth.needs import rows_for_missing
from bench.kube_rbac_proxy import kube_rbac_proxy, warm_up
from bench.pace import is_quick, pace
from bench.peers import Peer, backend, plain_nginx
from bench.table import Row
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Session, TokenRecord
from ostiary_gateway.sessions import digest, new_token
from ostiary_gateway.stores.sqlite import database_file
from ostiary_gateway.stores.sqlite import transactions as changes
from ostiary_gateway.stores.sqlite.log import Seen

SIZES = (1, 10, 100, 1_000, 3_000) if is_quick() else (1, 10, 100, 1_000, 3_000, 10_000, 30_000, 100_000)
MOST_OF_KUBE_RBAC_PROXY = pace(100, quick=10)
CONNECTIONS, ROUNDS, SECONDS = 64, pace(5, quick=1), 1
# How many requests a second there are at least, to know how long a whole rotation takes.
SLOWEST = 4_000
MIB = 1024**2
_LUA = """
local lines, i = {}, %d
for line in io.lines("%s") do lines[#lines + 1] = line end
request = function()
  i = i + 1
  local place = i %% #lines + 1
  return "GET /api/v1/namespaces/team-" .. place %% 5 .. "/pods/web-" .. place %% 20 ..
    " HTTP/1.1\\r\\nHost: gateway.test\\r\\nUser-Agent: kubectl/v1.33.1 (linux/amd64) kubernetes/8adc0f0\\r\\n" ..
    "Accept: application/json\\r\\nAuthorization: Bearer " .. lines[place] .. "\\r\\nAccept-Encoding: gzip\\r\\n\\r\\n"
end
"""
CPU, P99, MEMORY, RATIO = "CPU a request", "p99", "memory", "CPU / plain nginx"


@dataclass(slots=True)
class Rotation:
    """The load on one candidate: goes on with the next user where the sample before ended."""

    peer: Peer
    tokens: Path
    at: int = 0

    def sample(self, seconds: int = SECONDS) -> Sample:
        script = self.tokens.with_name(f"{self.peer.name}.lua")
        script.write_text(_LUA % (self.at, self.tokens))
        taken = sample(self.peer, script, seconds=seconds, connections=CONNECTIONS)
        self.at += round(taken.per_second * seconds)
        return taken


def run() -> Iterator[Row]:
    missing = list(rows_for_missing("users in rotation", "nginx", "wrk"))
    yield from missing
    if missing:
        return
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = _fill(folder / "users", SIZES[-1])
        with (
            backend(folder) as upstream,
            plain_nginx(folder, upstream) as nginx,
            gateway(folder, upstream, tokens_of="users") as ours,
            kube_rbac_proxy(folder, upstream) as in_go,
        ):
            for size in SIZES:
                chosen = folder / f"tokens-{size}"
                chosen.write_text("\n".join(tokens[:size]))
                others = in_go if size <= MOST_OF_KUBE_RBAC_PROXY else []
                for peer in others:
                    warm_up(peer, tokens[:size])
                for name_of_peer, figure, value in _measure([nginx, ours, *others], chosen, size):
                    curves.setdefault((name_of_peer, figure), []).append((size, value))
    yield from _rows(curves)
    if not in_go:
        yield Row(
            "kube-rbac-proxy, users in rotation", "not measured: it could not be built (scripts/components bench)"
        )
    _draw(curves)


def _measure(peers: Sequence[Peer], tokens: Path, size: int) -> Iterator[tuple[str, str, float]]:
    rotations = [Rotation(peer, tokens) for peer in peers]
    for rotation in rotations:
        # Once around, so that what can be remembered is.
        rotation.sample(1 + size // SLOWEST)
    samples: dict[str, list[Sample]] = {peer.name: [] for peer in peers}
    # In turns: the machine is shared.
    for _ in range(ROUNDS):
        for rotation in rotations:
            samples[rotation.peer.name].append(rotation.sample())
    cpu = {name: min(one.cpu_us for one in taken) for name, taken in samples.items()}
    for peer in peers:
        yield peer.name, CPU, cpu[peer.name]
        yield peer.name, P99, min(one.p99_ms for one in samples[peer.name])
        yield peer.name, MEMORY, resident(peer.pid) / MIB
        if peer is not peers[0]:
            yield peer.name, RATIO, cpu[peer.name] / cpu[peers[0].name]


def _rows(curves: dict[tuple[str, str], list[tuple[float, float]]]) -> Iterator[Row]:
    for (peer, figure), points in curves.items():
        sizes, values = zip(*points, strict=True)
        unit = {CPU: "us", P99: "ms", MEMORY: "MiB", RATIO: "x"}[figure]
        if peer != "nginx" or figure == CPU:
            yield growth_row(f"{peer}, users in rotation: {figure}", sizes, values, unit)


def _draw(curves: dict[tuple[str, str], list[tuple[float, float]]]) -> None:
    for figure, unit, plot in ((CPU, "us", "cpu"), (P99, "ms", "p99"), (MEMORY, "MiB", "memory")):
        lines = {peer: points for (peer, of), points in curves.items() if of == figure}
        growth_plot(
            f"growth-users-{plot}", f"{figure[0].upper()}{figure[1:]}, by users in rotation", "users", unit, lines
        )


def _fill(home: Path, users: int) -> list[str]:
    """The store of a gateway with so many users, and the token of each."""
    home.mkdir()
    now = SYSTEM_CLOCK.now()
    tokens = []
    with closing(database_file.connect(str(home / "tokens.db"))) as db:
        database_file.prepare(db)
        db.execute("BEGIN")
        for number in range(users):
            token = new_token().reveal()
            user = UserInfo(f"user-{number}@example.com", groups=("readers", "staff"))
            session = Session(f"{number:022d}", user, "bench", now, now + timedelta(hours=24))
            record = TokenRecord(digest(token), session.id, now, session.expires_at)
            assert changes.add(db, session, [record], now=now, seen=Seen())
            tokens.append(token)
        db.execute("COMMIT")
    (home / "tokens.db").chmod(0o600)
    return tokens
