"""What a token that is less than its owner costs: the same requests with the owner's token and with a narrowed one.

A whole gateway behind callgrind, which counts instructions: neighbours do not change them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import httpx

from bench.counted_gateway import counted_gateway, send_all
from bench.pace import pace
from bench.peers import Peer
from bench.stores_gateways import PODS, sign_in
from bench.table import Row

COUNTED, TURNS = pace(1000, quick=50), pace(3, quick=1)
SCOPE = "get,list pods -n team; get,list deployments.apps -n team; get configmaps --name settings -n team; discovery"
_names = itertools.count()


def run() -> Iterator[Row]:
    with counted_gateway() as (gateway, counter):
        owner, _ = sign_in(gateway, "user-0")
        tokens = {"owner": owner, "narrowed": _narrowed(gateway, owner)}
        counter.start()
        for what, each_new in (("the same request again", False), ("a request line that is new each time", True)):
            for token in tokens.values():
                _ask(gateway, token, each_new=each_new)
            costs: dict[str, list[float]] = {name: [] for name in tokens}
            # In turns, so that what changes meanwhile is the same for both.
            for _ in range(TURNS):
                for name, token in tokens.items():
                    work = partial(_ask, gateway, token, each_new=each_new)
                    costs[name].append(counter.instructions_for(work))
            own, less = (min(costs[name]) / COUNTED for name in ("owner", "narrowed"))
            yield Row(
                f"a narrowed token / its owner's, {what}: instructions",
                f"{less / own:.3f} ({less / 1000:,.1f} thousand)",
                "<= 1.05",
            )


def _narrowed(gateway: Peer, owner: str) -> str:
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": owner,
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "scope": SCOPE,
        "actor": "bench",
    }
    answer = httpx.post(f"http://127.0.0.1:{gateway.port}/auth/token", data=form, trust_env=False, timeout=60)
    return str(answer.raise_for_status().json()["access_token"])


def _ask(gateway: Peer, token: str, *, each_new: bool) -> None:
    targets = (f"{PODS}/web-{next(_names):08}" if each_new else PODS for _ in range(COUNTED))
    head = f"Host: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    send_all(gateway, (f"GET {target} HTTP/1.1\r\n{head}" for target in targets))
