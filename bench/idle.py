"""What a gateway costs while nobody asks it anything, and what counting together costs a request."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from bench.pace import pace
from bench.table import Row
from ostiary_gateway.interfaces.shared_counts import Change
from ostiary_gateway.interfaces.store_capabilities import Counted
from ostiary_gateway.limits.counts import MachineCounts, MemoryCounts
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts

T = TypeVar("T")

IDLE_SECONDS = pace(20.0, quick=2.0)
WORKERS = 2
TAKES = 20_000


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name, _serving(Path(name)) as pid:
        before = _processor_seconds(pid)
        time.sleep(IDLE_SECONDS)
        used = _processor_seconds(pid) - before
    percent = used / IDLE_SECONDS / WORKERS * 100
    yield Row("an idle gateway, of a core per worker", f"{percent:.2f} %", "< 0.2 %")
    each = _seconds_of_a_take(ReplicatedCounts(MachineCounts(MachineCounts.create())))
    yield Row("a request counted by all workers of a machine together", f"{each * 1e6:.1f} us", "<= 25 us")
    yield Row("remembering it for the other replicas", f"{_seconds_of_a_report() * 1e6:.2f} us", "< 1 us")


def _seconds_of_a_take(counts: ReplicatedCounts) -> float:
    buckets = Buckets(1e6, 1e6, counts=counts, name="bench")
    started = time.process_time()
    for number in range(TAKES):
        buckets.take(f"user-{number % 100}")
    return (time.process_time() - started) / TAKES


def _seconds_of_a_report() -> float:
    counts, buckets = ReplicatedCounts(MemoryCounts()), Buckets(1.0, 1.0)
    counts.join(_Unasked())
    started = time.process_time()
    for number in range(TAKES):
        counts.report(f"bucket/bench/user-{number % 100}", buckets)
    return (time.process_time() - started) / TAKES


class _Unasked:
    """A store of counts that nobody asks here: that happens in the background."""

    async def update_counts(
        self, changes: Sequence[tuple[str, Change[T]]], *, wide: bool = False
    ) -> list[Counted[T] | None]:
        raise NotImplementedError


@contextmanager
def _serving(folder: Path) -> Iterator[int]:
    config = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "listen": {"address": "127.0.0.1:0", "workers": WORKERS},
        "health": {"address": "127.0.0.1:0"},
        "store": {"type": "sqlite", "path": "tokens.db"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "policy", "type": "rbac", "paths": ["policy"]}]},
        "upstreams": [{"name": "api", "server": "http://127.0.0.1:9", "attributes": "http"}],
        "audit": {"log": {"path": "audit.log"}},
    }
    (folder / "policy").mkdir()
    (folder / "policy" / "none.yaml").write_text("")
    (folder / "gateway.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "ostiary_gateway", "serve", "--config", "gateway.yaml"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = next(found[1] for line in process.stderr if (found := re.search(r"metrics on (\S+)", line)))
        _wait_until_ready(address)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(address: str) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"{address}/readyz") as answer:
                answer.read()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)


def _processor_seconds(pid: int) -> float:
    workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks = 0
    for each in (pid, *map(int, workers)):
        fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
