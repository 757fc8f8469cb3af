"""How soon an issuer's logout has cut the last open stream: three replicas on PostgreSQL, watches open at each.

From the first byte of the logout token, sent to one replica, until the last of all watches has ended.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import trustme

from bench.pace import pace
from bench.table import Row
from tests.support.oidc_replicas import OidcReplicas
from tests.support.postgresql import running
from tests.support.postgresql_store import store_section

# As many sign-ins as one address may begin at once.
LOGOUTS, REPLICAS, WATCHES = pace(50, quick=3), 3, 10


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name, running(config="fsync = on\n") as database:
        folder = Path(name)
        store = store_section(f"{database.host}:{database.port}", folder=folder)
        with OidcReplicas(folder, trustme.CA(), store=store, count=REPLICAS) as replicas:
            lags = [_lag(replicas, f"sid-{number}") for number in range(LOGOUTS)]
    middle, late = statistics.median(lags), statistics.quantiles(lags, n=100)[98]
    what = f"back-channel logout until the last of {REPLICAS * WATCHES} watches at {REPLICAS} replicas has ended"
    yield Row(f"{what}, PostgreSQL 15, median of {LOGOUTS}", f"{middle * 1000:.1f} ms", "< 100 ms")
    yield Row("the same, 99 of 100", f"{late * 1000:.1f} ms")


def _lag(replicas: OidcReplicas, session_id: str) -> float:
    token = replicas.sign_in(session_id)
    return asyncio.run(replicas.cut_by_logout(token, session_id, watches=WATCHES))
