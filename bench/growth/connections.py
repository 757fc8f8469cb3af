"""What connections cost that are open and idle: to whoever sends requests meanwhile, and in memory; beside nginx.

The load is the same at every size. Memory is that of the processes; what the kernel keeps for a socket is the same for
everybody.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.gateway import LUA, Sample, gateway, sample
from bench.growth.curve import growth_plot, growth_row
from bench.growth.held_connections import held_connections
from bench.growth.memory import resident
from bench.growth.needs import possible_sizes, rows_for_missing
from bench.pace import pace
from bench.peers import Peer, backend, plain_nginx
from bench.table import Row

SIZES = (1, 10, 100, 1_000, pace(10_000, quick=2_000))
FEWEST_FOR_MEMORY = 1_000
ACTIVE, ROUNDS, SECONDS = 16, pace(6, quick=1), 1
_REQUEST = "GET {path} HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer {token}\r\n\r\n"
# All idle connections and the active ones, and none is closed while it is counted.
_LISTEN = "limits: {connections: 12000}, timeouts: {idle: 600s}"

# For each of the two, the figures at each size.
Curves = dict[str, list[float]]


def run() -> Iterator[Row]:
    missing = list(rows_for_missing("idle connections", "nginx", "wrk"))
    yield from missing
    if missing:
        return
    sizes = possible_sizes(SIZES)
    for size in SIZES[len(sizes) :]:
        yield Row(f"{size:,} idle connections", "not measured: the limit of open files is too low (ulimit -Hn)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            backend(folder) as upstream,
            plain_nginx(folder, upstream) as nginx,
            gateway(folder, upstream, listen=_LISTEN) as ours,
        ):
            curves = _measure(folder, [nginx, ours], sizes)
    what = f"with {ACTIVE} active connections and so many idle ones"
    for name in ("nginx", "ostiary"):
        for figure, unit, at_most in _FIGURES:
            if points := _points(curves, name, figure):
                measured, values = zip(*points, strict=True)
                yield growth_row(f"{name}, {what}: {figure}", measured, values, unit, at_most=at_most)
    ratios = [a / b for a, b in zip(curves[f"ostiary: {_CPU}"], curves[f"nginx: {_CPU}"], strict=True)]
    yield growth_row(f"{what}: CPU of ostiary / nginx", sizes, ratios, "x")
    _draw(curves)


_CPU, _P50, _P99, _MEMORY = "CPU a request", "p50", "p99", "memory of an idle connection"
_FIGURES = ((_CPU, "us", 1.5), (_P50, "ms", 0.0), (_P99, "ms", 0.0), (_MEMORY, "KiB", 0.0))


def _points(curves: Curves, name: str, figure: str) -> list[tuple[int, float]]:
    """Without those that say nothing: a few connections are lost in what a process takes and gives back anyhow."""
    values = curves[f"{name}: {figure}"]
    points = zip(SIZES[: len(values)], values, strict=True)
    return [(size, value) for size, value in points if figure != _MEMORY or size >= FEWEST_FOR_MEMORY]


def _measure(folder: Path, peers: list[Peer], sizes: list[int]) -> Curves:
    targets = [line.split() for line in (folder / "gateway" / "targets").read_text().splitlines()]
    requests = [_REQUEST.format(path=path, token=token) for token, path in targets]
    script = folder / "load.lua"
    script.write_text(LUA % (folder / "gateway" / "targets"))
    curves: Curves = {f"{peer.name}: {figure}": [] for peer in peers for figure, _, _ in _FIGURES}
    for peer in peers:
        sample(peer, script, connections=ACTIVE)
    for size in sizes:
        before = {peer.name: resident(peer.pid) for peer in peers}
        with ExitStack() as stack:
            for peer in peers:
                stack.enter_context(held_connections(peer.port, size, requests))
                grown = resident(peer.pid) - before[peer.name]
                curves[f"{peer.name}: {_MEMORY}"].append(max(grown, 0) / size / 1024)
            for name, samples in _samples(peers, script).items():
                curves[f"{name}: {_CPU}"].append(min(one.cpu_us for one in samples))
                curves[f"{name}: {_P50}"].append(statistics.median(one.p50_ms for one in samples))
                curves[f"{name}: {_P99}"].append(statistics.median(one.p99_ms for one in samples))
    return curves


def _samples(peers: list[Peer], script: Path) -> dict[str, list[Sample]]:
    """In turns: the machine is shared."""
    samples: dict[str, list[Sample]] = {peer.name: [] for peer in peers}
    for _ in range(ROUNDS):
        for peer in peers:
            samples[peer.name].append(sample(peer, script, seconds=SECONDS, connections=ACTIVE))
    return samples


def _draw(curves: Curves) -> None:
    for figure, unit, _ in _FIGURES:
        lines = {name: _points(curves, name, figure) for name in ("nginx", "ostiary")}
        plot = figure.replace(" ", "-").lower()
        title = f"{figure[0].upper()}{figure[1:]}, by idle connections"
        growth_plot(f"growth-connections-{plot}", title, "idle connections", unit, lines)
