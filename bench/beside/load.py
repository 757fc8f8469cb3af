"""What wrk sends, and what a sample of it says about a candidate and about the load itself."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.beside.site import Candidate, Site
from bench.peers import LOAD_CORE

SCRIPT = Path(__file__).with_name("load.lua")
CONNECTIONS = 64
# In the place of ten digits that are new in each request.
NEW = "\1"
# No two samples send the same numbers, as long as none has more requests than this.
_PER_SAMPLE = 10_000_000
_samples = itertools.count(1)
_ATTEMPTS = 3
# Who is slower than that would be so anyway.
_WARM_UPS = 10


@dataclass(frozen=True, slots=True)
class Sample:
    per_second: float
    p50_ms: float
    p99_ms: float
    # Of all processes of the candidate, for one request.
    cpu_us: float
    # How much of a core was used: by the candidate, and by wrk and the backend together.
    core: float
    load_core: float


class Requests(NamedTuple):
    """What wrk sends, again and again, and how many of them are the same each time."""

    file: Path
    known: int


def write_requests(file: Path, requests: Iterable[str]) -> Requests:
    """For `take_sample`. A request may hold `NEW` in its head."""
    known = 0
    with file.open("w", newline="") as out:
        for request in requests:
            out.write(f"{len(request)}\n{request}")
            known += NEW not in request
    return Requests(file, known)


def take_sample(
    candidate: Candidate, site: Site, requests: Requests, *, seconds: int, connections: int = CONNECTIONS
) -> Sample:
    """What wrk sees in so many *seconds*, and what the candidate uses meanwhile. Any answer but a 2xx is an error."""
    for attempt in range(_ATTEMPTS):
        # A machine with other work may leave no time for a single answer; the next second is another one.
        if made := _try_sample(candidate, site, requests, seconds=seconds + attempt, connections=connections):
            return made
    raise RuntimeError(f"{candidate.name}: no answer in {seconds + attempt} seconds")


def warm_up(candidate: Candidate, site: Site, requests: Requests, *, connections: int = CONNECTIONS) -> None:
    """Until each request that can be known has come three times: a busy machine needs a while for that."""
    sent = 0.0
    for _ in range(_WARM_UPS):
        sent += take_sample(candidate, site, requests, seconds=1, connections=connections).per_second
        if sent >= 3 * requests.known:
            return


def _try_sample(
    candidate: Candidate, site: Site, requests: Requests, *, seconds: int, connections: int
) -> Sample | None:
    """None if nothing was answered."""
    first = next(_samples) * _PER_SAMPLE % 10**10
    command = ["taskset", "-c", LOAD_CORE, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    command += ["--timeout", "10s", "-s", str(SCRIPT), candidate.url, "--", str(requests.file), str(first)]
    before, backend_before, began = candidate.cpu_seconds(), site.backend.cpu_seconds(), time.perf_counter()
    shown, load_cpu = _run(command)
    wall = time.perf_counter() - began
    spent, backend_spent = candidate.cpu_seconds() - before, site.backend.cpu_seconds() - backend_before
    if "Non-2xx" in shown or "Socket errors" in shown:
        raise RuntimeError(f"{candidate.name}: {shown}")
    answers = int(_field(r"(\d+) requests in", shown))
    if not answers or not spent:
        return None
    return Sample(
        per_second=float(_field(r"Requests/sec:\s+([\d.]+)", shown)),
        p50_ms=_milliseconds("50", shown),
        p99_ms=_milliseconds("99", shown),
        cpu_us=spent / answers * 1e6,
        core=spent / float(_field(r"requests in ([\d.]+)s", shown)),
        load_core=(load_cpu + backend_spent) / wall,
    )


def _run(command: list[str]) -> tuple[str, float]:
    """What it prints, and the CPU seconds that it used."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    with process.stdout as out:
        shown = out.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command}: {shown}")
    return shown, usage.ru_utime + usage.ru_stime


def _milliseconds(percentile: str, shown: str) -> float:
    match = re.search(rf"\s{percentile}%\s+([\d.]+)(us|ms|s|m)\b", shown)
    assert match is not None, shown
    return float(match[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}[match[2]]


def _field(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]
