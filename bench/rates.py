"""Latency at fixed rates, and how much of a core they take: plain nginx, other proxies and the gateway.

h2load sends so many requests a second on 100 connections, whose turns are spread evenly, whether answers are quick or
slow. A request that is due while its connection still waits for an answer is sent, and counted from, when that has
come: a pause is understated where it is longer than the interval of a connection (coordinated omission).
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.beside.everyone import Everyone, everyone
from bench.beside.plain import ENVOY, HAPROXY, NGINX
from bench.beside.site import Candidate
from bench.beside.with_us import OURS
from bench.pace import Progress, pace
from bench.peers import LOAD_CORE
from bench.plots import line_plot
from bench.table import Row

RATES = (500, 2_000, 5_000)
ROUNDS, SECONDS = pace(2, quick=1), pace(4, quick=1)
CONNECTIONS, PATHS = 100, 20
# While connections are opened, and everything is new to everybody.
START_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Turn:
    """What h2load saw at a rate, once, and how much of its core the candidate used."""

    per_second: float
    p50_ms: float
    p99_ms: float
    core: float


def run() -> Iterator[Row]:
    with (
        tempfile.TemporaryDirectory() as name,
        everyone(Path(name), secure=False, wanted=(HAPROXY, ENVOY), role="view") as candidates,
    ):
        turns = _measured(candidates)
        for rate in RATES:
            yield from _rows(turns[rate], rate)
        yield from candidates.missing_rows("latency at fixed rates")
    _draw(turns)


def _measured(candidates: Everyone) -> dict[int, dict[str, list[Turn]]]:
    everybody = [candidates.nginx, *candidates.others]
    progress = Progress("rates", ROUNDS * len(RATES) * len(everybody))
    turns: dict[int, dict[str, list[Turn]]] = {rate: defaultdict(list) for rate in RATES}
    for _ in range(ROUNDS):
        for rate in RATES:
            for candidate in everybody:
                progress.step(f"{candidate.name} at {rate:,}")
                turns[rate][candidate.name].append(take_turn(candidate, candidates, rate))
    return turns


def take_turn(candidate: Candidate, candidates: Everyone, rate: int) -> Turn:
    folder = candidates.site.folder
    uris, log = folder / "uris", folder / "h2load.log"
    uris.write_text("".join(f"{candidate.url}api/v1/namespaces/team-{n % 5}/pods/web-{n}\n" for n in range(PATHS)))
    log.unlink(missing_ok=True)
    each = rate / CONNECTIONS
    # All connections are opened within one of their intervals, so that their turns do not fall together.
    at_once, period = (rate // 1000, 1) if rate >= 1000 else (rate // 100, 10)
    command = ["taskset", "-c", LOAD_CORE, "h2load", "--h1", "-t1", f"-c{CONNECTIONS}", f"-n{rate * SECONDS}"]
    command += [f"-r{at_once}", f"--rate-period={period}ms", f"--rps={each:g}", "-i", str(uris), "--log-file", str(log)]
    command += ["-H", f"authorization: Bearer {candidates.tokens[''][0]}", "-H", "accept: application/json"]
    before, began = candidate.cpu_seconds(), time.perf_counter()
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    wall, spent = time.perf_counter() - began, candidate.cpu_seconds() - before
    if f" {rate * SECONDS} succeeded" not in shown:
        raise RuntimeError(f"{candidate.name} at {rate}: {shown}")
    return _read_log(log, core=spent / wall)


def _read_log(log: Path, *, core: float) -> Turn:
    """A line is the time of a request and how long it took, in microseconds, with the status between them."""
    requests = sorted((int(at), int(took)) for at, _, took in (line.split() for line in log.read_text().splitlines()))
    first = requests[0][0] + START_SECONDS * 1e6
    counted = [(at, took) for at, took in requests if at >= first]
    took = [each for _, each in counted]
    hundredths = statistics.quantiles(took, n=100)
    return Turn(
        per_second=(len(counted) - 1) / (counted[-1][0] - counted[0][0]) * 1e6,
        p50_ms=hundredths[49] / 1000,
        p99_ms=hundredths[98] / 1000,
        core=core,
    )


def _rows(turns: dict[str, list[Turn]], rate: int) -> Iterator[Row]:
    base = _median(turns[NGINX], "p99_ms")
    for name, each in turns.items():
        text = (
            f"p50 {_median(each, 'p50_ms'):.2f} ms, p99 {_median(each, 'p99_ms'):.2f} ms, "
            f"{_median(each, 'core'):.0%} of the core ({_median(each, 'per_second'):,.0f} / s reached)"
        )
        if name == OURS:
            text += f"; p99 {_median(each, 'p99_ms') / base:.2f} x {NGINX}'s"
        yield Row(f"{rate:,} requests / s: {name}", text, "p99 <= 2 x" if name == OURS else "-")


def _median(turns: Sequence[Turn], figure: str) -> float:
    return float(statistics.median(getattr(turn, figure) for turn in turns))


def _draw(turns: dict[int, dict[str, list[Turn]]]) -> None:
    for figure, title, label, factor in (
        ("p99_ms", "Latency at fixed rates, 99 of 100", "milliseconds", 1),
        ("core", "Share of a core at fixed rates", "per cent of a core", 100),
    ):
        # Nginx last, so that each candidate has the colour that it has in the other plots.
        names = sorted(turns[RATES[0]], key=lambda name: name == NGINX)
        series = {name: [(rate, factor * _median(turns[rate][name], figure)) for rate in RATES] for name in names}
        file = Path(f"rates-{figure.removesuffix('_ms')}.svg")
        line_plot(file, title, "requests per second", label, series)
