"""What one user feels of another who is greedy, and what that costs in memory.

    the modest user asks alone  ->  the greedy one does everything at once, and the modest one asks all the while

The modest user asks at a steady pace from a process of its own, so that waiting in the load's own loop is not
measured; for the same reason the load runs in another process, at a lower priority. The gateway has one core,
everything else the other.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.gateway import _resident, gateway
from bench.greedy_load import CHUNKED_BODIES, LOGINS, READS, TARGETS, UPLOADS, Greedy
from bench.pace import pace
from bench.peers import BODY, LOAD_CORE, _nginx, free_port, started
from bench.table import Row
from ostiary.model import UserInfo
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore

PER_SECOND = 200
QUIET_SECONDS = pace(10, quick=2)
ROUNDS = pace(5, quick=1)
# The uploads and the reads are slow: somebody else must feel them for longer than it takes to begin them.
HELD_SECONDS = 5
LARGE_BYTES = 8 * 1024 * 1024
# Asks at a steady pace until its input ends, and then prints how long each answer took, in microseconds.
MODEST = """
import select, socket, sys, time
port, token, pace = int(sys.argv[1]), sys.argv[2], 1 / float(sys.argv[3])
end = socket.create_connection(("127.0.0.1", port))
lines = ["GET /api/v1/namespaces/team-1/pods/mine HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", "", ""]
ask = "\\r\\n".join(lines).encode()
took, due = [], time.perf_counter()
while not select.select([sys.stdin], [], [], max(0.0, due - time.perf_counter()))[0]:
    due = max(due + pace, time.perf_counter() - pace)
    began, data = time.perf_counter(), b""
    end.sendall(ask)
    while b"\\r\\n\\r\\n" not in data or len(data.split(b"\\r\\n\\r\\n", 1)[1]) < 1024:
        data += end.recv(65536)
    assert data.startswith(b"HTTP/1.1 200"), data[:200]
    took.append(int((time.perf_counter() - began) * 1e6))
print(*took)
"""


class Modest:
    """The other user, in a process of its own."""

    def __init__(self, port: int, token: str) -> None:
        command = ["taskset", "-c", LOAD_CORE, sys.executable, "-c", MODEST, str(port), token, str(PER_SECOND)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self) -> list[int]:
        """How long each of its answers took."""
        return [int(word) for word in self._process.communicate("\n", timeout=60)[0].split()]


@dataclass(frozen=True, slots=True)
class Round:
    """Microseconds of the modest user's answers, and what the greedy one cost and was answered."""

    alone: list[int]
    beside: list[int]
    memory_before: int
    memory_most: int
    statuses: dict[int, int]

    @property
    def ratio(self) -> float:
        return _p99(self.beside) / _p99(self.alone)


def run() -> Iterator[Row]:
    rounds = sorted((_round() for _ in range(ROUNDS)), key=lambda each: each.ratio)
    least, middle, most = rounds[0], rounds[ROUNDS // 2], rounds[-1]
    alone, beside = middle.alone, middle.beside
    yield Row("a modest user alone, p50 and p99", f"{_p50(alone)}, {_p99(alone)} us ({len(alone)} answers)")
    what = f"{LOGINS} sign-ins, {TARGETS:,} targets, {UPLOADS} uploads, {READS} reads, {CHUNKED_BODIES} chunked bodies"
    yield Row(f"the same beside a greedy one ({what})", f"{_p50(beside)}, {_p99(beside)} us ({len(beside)} answers)")
    ratio = f"{middle.ratio:.2f} [{least.ratio:.2f}-{most.ratio:.2f}]"
    yield Row(f"p99 beside the greedy one / alone, median of {ROUNDS} rounds", ratio, "<= 3")
    memory = max(rounds, key=lambda each: each.memory_most)
    text = f"{memory.memory_most / 1e6:.0f} MB (before: {memory.memory_before / 1e6:.0f} MB)"
    yield Row("the process, at its largest", text, "<= 150 MB")
    answers = ", ".join(f"{count} x {code}" for code, count in middle.statuses.items())
    yield Row("what the greedy user was answered", answers)


def _round() -> Round:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        upstream = _backend(folder, stack)
        ours = stack.enter_context(gateway(folder, upstream, role="cluster-admin"))
        store = folder / "gateway" / "tokens.db"
        jane, mallory = asyncio.run(_tokens(store))
        before = _resident(ours.pid)
        quiet = Modest(ours.port, jane)
        asyncio.run(asyncio.sleep(QUIET_SECONDS))
        alone = quiet.stop()
        meanwhile = Modest(ours.port, jane)
        with ProcessPoolExecutor(1, initializer=_give_way) as load:
            most, statuses = load.submit(_run_load, ours.port, ours.pid, mallory, store).result()
        return Round(alone, meanwhile.stop(), before, most, statuses)


def _backend(folder: Path, stack: ExitStack) -> int:
    """nginx: a kilobyte for every path, and one large file."""
    port = free_port()
    (folder / "files" / "api").mkdir(parents=True)
    (folder / "files" / "api" / "large").write_bytes(b"x" * LARGE_BYTES)
    server = f'location = /api/large {{ root {folder}/files; }} location / {{ return 200 "{BODY}"; }}'
    stack.enter_context(started(_nginx(folder, "backend", port, server), core=LOAD_CORE, port=port, cwd=folder))
    return port


async def _tokens(path: Path) -> tuple[str, str]:
    tokens = Tokens(SqliteTokenStore(path))
    users = [UserInfo(name, groups=("readers",)) for name in ("jane", "mallory")]
    jane, mallory = [(await tokens.issue(user, provider="bench")).token.reveal() for user in users]
    await tokens.store.close()
    return jane, mallory


def _give_way() -> None:
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    os.nice(10)


def _run_load(port: int, pid: int, token: str, store: Path) -> tuple[int, dict[int, int]]:
    return asyncio.run(_be_greedy(port, pid, token, store))


async def _be_greedy(port: int, pid: int, token: str, store: Path) -> tuple[int, dict[int, int]]:
    """Everything; returns the gateway's memory at its largest, and what was answered."""
    greedy = Greedy(port, [token], large="/api/large", path="/api/")
    tokens = Tokens(SqliteTokenStore(store))

    async def login() -> str:
        return (await tokens.issue(UserInfo("mallory", groups=("readers",)), provider="bench")).token.reveal()

    dripping = asyncio.ensure_future(greedy.drip())
    most = 0
    try:
        await greedy.sign_in(login)
        for step in (greedy.ask_for_targets, greedy.hold_uploads, greedy.hold_reads, greedy.send_chunks, _hold):
            await step()
            most = max(most, _resident(pid))
    finally:
        dripping.cancel()
        greedy.close()
        await tokens.store.close()
    return most, greedy.statuses


async def _hold() -> None:
    await asyncio.sleep(HELD_SECONDS)


def _p50(values: list[int]) -> int:
    return int(statistics.median(values))


def _p99(values: list[int]) -> int:
    return sorted(values)[int(len(values) * 0.99)]
