"""What credentials cost a client, counted: instructions by callgrind, and Python calls. Neighbours change neither.

The clients of `client` work in a process of their own behind valgrind, bare and signed in turns; the server and the
plugin are not counted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.client import PAIRS, REQUESTS, Rig, pairs, rig
from bench.instructions import Counter, valgrind
from bench.pace import pace
from bench.table import Row

# Loops of `REQUESTS` requests: before anything is counted, in a turn, and the number of turns of each side.
WARM_UP, LOOPS, TURNS = 5, pace(10, quick=2), pace(3, quick=1)
SIDES = ("bare", "signed")


def run() -> Iterator[Row]:
    with rig() as made:
        with _worker(made, behind=[]) as worker:
            for name in PAIRS:
                yield _row(name, "Python calls", {side: worker.calls(name, side) for side in SIDES})
        if shutil.which("valgrind") is None or shutil.which("callgrind_control") is None:
            for name in PAIRS:
                yield Row(_what(name, "instructions"), "not measured: valgrind is not installed", _promise(name))
            return
        with _worker(made, behind=valgrind(made.folder)) as worker:
            worker.work(next(iter(PAIRS)), "bare", 1)
            # Once it has answered: before that there is nobody to tell.
            counter = Counter(worker.pid, made.folder)
            counter.start()
            for name in PAIRS:
                yield _row(name, "thousand instructions", _instructions(worker, counter, name))


def _instructions(worker: Worker, counter: Counter, name: str) -> dict[str, float]:
    costs: dict[str, list[float]] = {side: [] for side in SIDES}
    for side in SIDES:
        worker.work(name, side, WARM_UP)
    for turn in range(TURNS):
        for side in SIDES if turn % 2 else reversed(SIDES):
            costs[side].append(counter.instructions_of(partial(worker.work, name, side, LOOPS)))
    # The least: what the collector and the interpreter do now and then is not what a request costs.
    return {side: min(costs[side]) / (LOOPS * REQUESTS) / 1000 for side in SIDES}


def _row(name: str, unit: str, costs: dict[str, float]) -> Row:
    bare, signed = costs["bare"], costs["signed"]
    figures = f"{signed:,.0f} / {bare:,.0f} {unit} a request"
    return Row(_what(name, unit.removeprefix("thousand ")), f"{signed / bare:.3f} ({figures})", _promise(name))


def _what(name: str, unit: str) -> str:
    return f"{name}: signed / bare, {unit}"


def _promise(name: str) -> str:
    return PAIRS[name]


# --- the process in which the clients work ---


class Worker:
    """The clients, in a process that does what it is told on its stdin."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def work(self, name: str, side: str, loops: int) -> None:
        self._ask({"name": name, "side": side, "loops": loops})

    def calls(self, name: str, side: str) -> float:
        self.work(name, side, 2)
        return self._ask({"name": name, "side": side, "loops": 1, "profiled": True}) / REQUESTS

    def _ask(self, order: dict[str, object]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def _worker(made: Rig, *, behind: list[str]) -> Iterator[Worker]:
    command = [*behind, sys.executable, "-m", "bench.client_instructions", str(made.folder), made.url]
    # A fixed seed: otherwise each run has other collisions in its dicts.
    environment = {"PYTHONHASHSEED": "0", "PYTHONPATH": str(Path.cwd()), "HOME": str(made.folder)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield Worker(process)
    finally:
        process.communicate()


def _serve(made: Rig) -> None:
    sides = {name: dict(zip(SIDES, pair, strict=True)) for name, pair in pairs(made).items()}
    for line in sys.stdin:
        order = json.loads(line)
        loop = sides[order["name"]][order["side"]]
        print(_calls(loop) if order.get("profiled") else _repeat(loop, order["loops"]), flush=True)


def _repeat(loop: Callable[[], None], loops: int) -> int:
    for _ in range(loops):
        loop()
    return 0


def _calls(loop: Callable[[], None]) -> int:
    """Of functions, those in C included. The last few are the profiler's own end, and the same for both sides."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        loop()
    finally:
        sys.setprofile(None)
    return count


if __name__ == "__main__":
    place = Path(sys.argv[1])
    _serve(Rig(place, sys.argv[2], (place / "authority.pem").read_bytes(), place / "config"))
    # Sessions of aiohttp would complain that nobody closed them.
    os._exit(0)
