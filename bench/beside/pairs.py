"""Candidates beside plain nginx: each sample right after one of nginx, and the figure is the median of the pairs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.beside.load import CONNECTIONS, Requests, Sample, take_sample, warm_up
from bench.beside.plain import NGINX
from bench.beside.site import Candidate, Site
from bench.pace import Progress, pace
from bench.table import Row


class Turns(NamedTuple):
    """How many pairs of samples, and how long each sample is."""

    rounds: int
    seconds: int


@dataclass(slots=True)
class Pairs:
    """Samples of one candidate, each with the one of nginx right before it."""

    name: str
    samples: list[tuple[Sample, Sample]] = field(default_factory=list)

    def ratio(self, figure: str) -> float:
        return float(
            statistics.median(getattr(theirs, figure) / getattr(base, figure) for base, theirs in self.samples)
        )

    def median(self, figure: str) -> float:
        return float(statistics.median(getattr(theirs, figure) for _, theirs in self.samples))

    def row(self, what: str, promised: str = "-") -> Row:
        text = (
            f"CPU {self.ratio('cpu_us'):.2f} x ({self.median('cpu_us'):.0f} us), "
            f"{self.ratio('per_second'):.2f} of the requests / s, "
            f"p50 {self.ratio('p50_ms'):.2f} x ({self.median('p50_ms'):.1f} ms), "
            f"p99 {self.ratio('p99_ms'):.2f} x ({self.median('p99_ms'):.1f} ms)"
        )
        return Row(f"{what}: {self.name} / {NGINX}", text, promised)


def compare(
    nginx: Candidate,
    others: Sequence[Candidate],
    site: Site,
    requests: Mapping[str, Requests],
    *,
    what: str,
    plan: Mapping[str, Turns],
    connections: int = CONNECTIONS,
) -> list[Pairs]:
    """Pairs of samples, in rounds, so that a slow minute of the machine meets all. *plan* is by name; "" is the rest.

    *requests* is by `Candidate.requests`.
    """
    plans = {peer.name: plan.get(peer.name, plan[""]) for peer in others}
    turns = {name: pace(each.rounds, quick=1) for name, each in plans.items()}
    progress = Progress(what, sum(turns.values()))

    def sample(peer: Candidate, seconds: int) -> Sample:
        return take_sample(peer, site, requests[peer.requests], seconds=seconds, connections=connections)

    for peer in (nginx, *others):
        warm_up(peer, site, requests[peer.requests], connections=connections)
    pairs = {peer.name: Pairs(peer.name) for peer in others}
    for turn in range(max(turns.values())):
        for peer in others:
            if turn < turns[peer.name]:
                progress.step(peer.name)
                if peer.forgets:
                    sample(peer, 1)
                seconds = pace(plans[peer.name].seconds, quick=1)
                pairs[peer.name].samples.append((sample(nginx, seconds), sample(peer, seconds)))
    return list(pairs.values())


def load_row(pairs: Sequence[Pairs], what: str) -> Iterator[Row]:
    """Whether the load was the limit: a candidate that leaves some of its core unused waited for it."""
    bases = [base for each in pairs for base, _ in each.samples]
    rate, core, load = (
        statistics.median(getattr(base, figure) for base in bases) for figure in ("per_second", "core", "load_core")
    )
    text = f"{rate:,.0f} requests / s, with {core:.0%} of its core; load and backend used {load:.0%} of theirs"
    yield Row(f"{what}: {NGINX}", text)
    ours = pairs[0]
    text = f"{ours.median('core'):.0%} of its core; load and backend used {ours.median('load_core'):.0%} of theirs"
    yield Row(f"{what}: {ours.name} used", text)
