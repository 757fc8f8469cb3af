"""Another process that has a SQLite token store open: it says who else has, and ends when its standard input does.

with opened_elsewhere(path) as other: ...
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore

ROOT = Path(__file__).parents[2]
SECONDS = 60.0


@dataclass(frozen=True)
class OtherProcess:
    pid: int
    sees: str


@contextmanager
def opened_elsewhere(path: Path) -> Iterator[OtherProcess]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.open_store", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("open")
        yield OtherProcess(process.pid, said)
    finally:
        process.communicate(timeout=SECONDS)


async def _main(path: str) -> None:
    store = SqliteTokenStore(path)
    await store.heartbeat()
    print("open", *await store.others_using(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await store.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
