"""What the SQLite token store acknowledged survives kill -9 and a full disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore

PROGRAM = [sys.executable, "-m", "tests.support.token_store_program"]
ROOT = Path(__file__).parents[2]
ACKNOWLEDGED = 120


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*PROGRAM, str(path), *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT)


async def check(path: Path, said: list[str]) -> None:
    store = SqliteTokenStore(path)
    for line in said:
        word, digest = line.split()
        found = await store.find(bytes.fromhex(digest))
        assert (found is not None) is (word == "kept"), line
    await store.close()


async def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    """S65, T3: neither a token nor a revocation, in any of several lives of the same file, two processes at a time."""
    path, said = tmp_path / "tokens.db", []
    for life in range(3):
        victims = [start(path, f"life-{life}-{number}") for number in range(2)]
        for victim in victims:
            assert victim.stdout is not None
            said += [victim.stdout.readline() for _ in range(ACKNOWLEDGED)]
        for victim in victims:
            victim.kill()
        for victim in victims:
            rest, _ = victim.communicate()
            # The last line may be cut off, and then it was not said.
            said += [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
            assert victim.returncode == -9
        await check(path, said)
    assert len(said) >= 6 * ACKNOWLEDGED
    assert {line.split()[0] for line in said} == {"kept", "gone"}


async def test_nothing_acknowledged_is_lost_when_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    program = start(path, "full", str(300_000))
    output, _ = program.communicate(timeout=60)
    assert program.returncode == 0, "every worker is told that the store is unavailable"
    said = output.splitlines()
    assert said
    await check(path, said)
