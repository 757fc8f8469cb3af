"""What a request costs that is not quite like an earlier one: instructions of a whole gateway, counted by callgrind.

A known head, one with a new trace id, one with another header that is new, a new object of a known kind, a list with a
new version. Neighbours do not change the figures, so two versions of the gateway can be compared by them; they are of
user space only, and the kernel's share is the same for all rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

from bench.counted_gateway import counted_gateway, send_all
from bench.pace import pace
from bench.peers import Peer
from bench.stores_gateways import PODS, sign_in
from bench.table import Row

COUNTED, TURNS = pace(1000, quick=50), pace(2, quick=1)
_AGENT = "User-Agent: kubectl/v1.33.1 (linux/amd64) kubernetes/8adc0f0"
_numbers = itertools.count()


def _head(token: str, target: str, *lines: str) -> str:
    usual = ("Host: gateway.test", _AGENT, "Accept: application/json", f"Authorization: Bearer {token}")
    return "\r\n".join((f"GET {target} HTTP/1.1", *usual, "Accept-Encoding: gzip", *lines, "", ""))


_REQUESTS: dict[str, Callable[[str, int], str]] = {
    "a known head": lambda token, _: _head(token, f"{PODS}/web-1"),
    "a new trace id": lambda token, number: _head(
        token, f"{PODS}/web-1", f"Traceparent: 00-4bf92f3577b34da6{number:016x}-00f067aa0ba902b7-01"
    ),
    "another header that is new": lambda token, number: _head(token, f"{PODS}/web-1", f"X-Number: {number:08}"),
    "a new object": lambda token, number: _head(token, f"{PODS}/web-{number:08}"),
    "a list with a new resourceVersion": lambda token, number: _head(
        token, f"{PODS}?limit=500&resourceVersion={number + 10**8}"
    ),
}


def run() -> Iterator[Row]:
    with counted_gateway() as (gateway, counter):
        token, _ = sign_in(gateway, "user-0")
        counter.start()
        least: dict[str, float] = {}
        for what, make in _REQUESTS.items():
            work = partial(_ask, gateway, token, make)
            work()
            least[what] = min(counter.instructions_for(work) for _ in range(TURNS)) / COUNTED
            text = f"{least[what] / 1000:,.1f} thousand ({least[what] / least['a known head']:.2f} x a known head)"
            yield Row(f"{what}: instructions a request", text)


def _ask(gateway: Peer, token: str, make: Callable[[str, int], str]) -> None:
    send_all(gateway, (make(token, next(_numbers)) for _ in range(COUNTED)))
