"""Heads that came before, new heads and new targets, plain and with TLS on both sides, beside nginx and other proxies.

A *known head* is one of 2,000 that are sent again and again. A *new head* differs from all before it in its trace id,
a *new target* in the name of an object or in a resourceVersion. As in `bench.gateway`, one core is for what is measured
and one for the load and the backend.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.beside.everyone import Everyone, everyone
from bench.beside.load import NEW, write_requests
from bench.beside.pairs import Pairs, Turns, compare, load_row
from bench.beside.plain import ENVOY, HAPROXY
from bench.beside.with_us import US
from bench.plots import bar_plot
from bench.table import Row

PATHS = 20
PLAN = {**dict.fromkeys(US, Turns(rounds=4, seconds=2)), "": Turns(rounds=2, seconds=1)}
KNOWN, HEAD, TARGET = "known head", "new head", "new target"
PLAIN = (HAPROXY, ENVOY)
PROMISED = {KNOWN: 1.8, HEAD: 2.0, TARGET: 2.5}
PROMISED_WITH_TLS = 2.0


def run() -> Iterator[Row]:
    measured: dict[str, list[Pairs]] = {}
    for secure in (False, True):
        with tempfile.TemporaryDirectory() as name, everyone(Path(name), secure=secure, role="view") as candidates:
            for kind in (KNOWN, HEAD, TARGET):
                what = f"{kind}, {'TLS on both sides' if secure else 'plain'}"
                measured[what] = _compared(candidates, kind, what)
                yield from _rows(measured[what], what, PROMISED_WITH_TLS if secure else PROMISED[kind])
                yield from candidates.missing_rows(what)
    _draw(measured)


def _compared(candidates: Everyone, kind: str, what: str) -> list[Pairs]:
    requests = {
        load: write_requests(candidates.site.folder / f"{kind}-{load}".replace(" ", "-"), requests_of(tokens, kind))
        for load, tokens in candidates.tokens.items()
    }
    return compare(candidates.nginx, candidates.others, candidates.site, requests, what=what, plan=PLAN)


def requests_of(tokens: Sequence[str], kind: str) -> Iterator[str]:
    for number in range(PATHS):
        namespace = f"/api/v1/namespaces/team-{number % 5}"
        target = f"{namespace}/pods/web-{number}"
        if kind == TARGET:
            target = f"{namespace}/pods?resourceVersion={NEW}" if number % 2 else f"{namespace}/pods/web-{NEW}"
        trace = f"traceparent: 00-0af7651916cd43dd8448eb{NEW}-b7ad6b7169203331-01" if kind == HEAD else ""
        for token in tokens:
            yield request_text(f"GET {target} HTTP/1.1", token, trace)


def request_text(line: str, token: str, *more: str, body: str = "") -> str:
    """A request as kubectl makes it, with its headers always in the same order."""
    lines = [
        line,
        "Host: gateway.test",
        "User-Agent: kubectl/v1.33.1 (linux/amd64) kubernetes/8adc0f0",
        "Accept: application/json",
        f"Authorization: Bearer {token}",
        "Accept-Encoding: gzip",
        *(header for header in more if header),
        *([f"Content-Type: application/json\r\nContent-Length: {len(body)}"] if body else []),
    ]
    return "\r\n".join([*lines, "", body])


def _rows(pairs: Sequence[Pairs], what: str, promised: float) -> Iterator[Row]:
    yield from load_row(pairs, what)
    for each in pairs:
        yield each.row(what, f"CPU <= {promised} x, p99 <= 2 x" if each.name in US else "-")


def _draw(measured: dict[str, list[Pairs]]) -> None:
    """The proxies that check nothing, and those that check each request, are in plots of their own."""
    promised = [*PROMISED.values(), *(PROMISED_WITH_TLS for _ in PROMISED)]
    labels = [what.replace(", ", ",\n").replace(" on both sides", "") for what in measured]
    promise = dict(zip(labels, promised, strict=True))

    def groups(figure: str, *, checking: bool) -> dict[str, dict[str, float]]:
        return {
            label: {
                each.name: each.ratio(figure) for each in pairs if each.name in US or (each.name in PLAIN) != checking
            }
            for label, pairs in zip(labels, measured.values(), strict=True)
        }

    title, unit = "CPU for one request, beside plain nginx", "times plain nginx"
    bar_plot(Path("heads-cpu.svg"), title, unit, groups("cpu_us", checking=False), promise=promise)
    checking = f"{title}: proxies that check each request"
    bar_plot(Path("heads-cpu-checking.svg"), checking, unit, groups("cpu_us", checking=True), promise=promise)
    title, unit = "Requests per second on one core, beside plain nginx", "of plain nginx's"
    bar_plot(Path("heads-rate.svg"), title, unit, groups("per_second", checking=False))
