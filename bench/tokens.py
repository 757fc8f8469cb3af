"""What a million tokens cost: on the disk, in memory, at the start, and for each look-up."""

from __future__ import annotations

import asyncio
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from bench.pace import pace
from bench.table import Row
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, Session, TokenKind, TokenRecord
from ostiary_gateway.sessions import Tokens, digest, new_token, well_formed
from ostiary_gateway.stores.sqlite import database_file
from ostiary_gateway.stores.sqlite import transactions as changes
from ostiary_gateway.stores.sqlite.log import Seen
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore

TOKENS, PER_SESSION = pace(1_000_000, quick=10_000), 10
AT_ONCE, LOOKUPS, TURNS, REVOCATIONS = 500, pace(5000, quick=500), pace(7, quick=2), pace(50, quick=3)
SIGN_INS = pace(2000, quick=500)


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "tokens.db"
        # In a process of its own: what filling takes is not what keeping takes.
        subprocess.run([sys.executable, "-m", "bench.tokens", str(path)], check=True)
        bytes_each = path.stat().st_size / TOKENS
        yield Row(f"{TOKENS:,} tokens on the disk", f"{bytes_each:,.0f} bytes each", "<= 600 bytes each")
        yield from asyncio.run(_looked_up(path))
        yield from asyncio.run(_written(Path(name) / "sign-ins.db"))


def fill(path: str) -> None:
    """As a day of sign-ins and renewals would, but in one transaction."""
    asyncio.run(_create(path))
    with closing(database_file.connect(path)) as db:
        db.execute("PRAGMA cache_size = -400000")
        db.execute("BEGIN")
        now = SYSTEM_CLOCK.now()
        for number in range(TOKENS // PER_SESSION):
            changes.add(db, *_session(number), now=now, seen=Seen())
        db.execute("COMMIT")


async def _create(path: str) -> None:
    store = SqliteTokenStore(path)
    await store.count()
    await store.close()


async def _looked_up(path: Path) -> list[Row]:
    before = _memory()
    started = time.perf_counter()
    store = SqliteTokenStore(path)
    assert await store.find(_digest(7, 0)) is not None
    opened = time.perf_counter() - started
    for number in range(TOKENS // PER_SESSION):
        assert await store.find(_digest(number, number % PER_SESSION)) is not None
    grown = _memory() - before
    chosen = [_digest(random.randrange(TOKENS // PER_SESSION), 1) for _ in range(LOOKUPS)]
    tokens = [new_token().reveal().encode() for _ in range(LOOKUPS)]
    table = {digest(token): token for token in tokens}
    with closing(sqlite3.connect(path)) as plain:
        ways: dict[str, Callable[[], None]] = {
            "plain": lambda: _plain(plain, chosen),
            "dict": lambda: _dict(table, tokens),
        }
        took: dict[str, list[float]] = {name: [] for name in (*ways, "store")}
        # In turns: the machine is shared.
        for _ in range(TURNS):
            for name, way in ways.items():
                took[name].append(_timed(way))
            started = time.perf_counter()
            for one in chosen:
                assert await store.find(one) is not None
            took["store"].append(time.perf_counter() - started)
    each = {name: statistics.median(times) / LOOKUPS for name, times in took.items()}
    lag = await _revocation_lag(store, path)
    await store.close()
    return [
        Row("opening it and finding one", f"{opened * 1000:.1f} ms", "<= 5 s"),
        Row("memory after a look-up of every session", f"{grown / 1024**2:.0f} MiB more", "does not grow with them"),
        Row("look-up in the store, session and user built", f"{1 / each['store']:,.0f} / s"),
        Row("that / one row by plain sqlite3", f"{each['store'] / each['plain']:.1f}", "<= 5"),
        Row("form, digest and dict, as for a token in use", f"{each['dict'] * 1e6:.1f} us", "<= 5 us"),
        Row("revoked by another connection until told here, median", f"{lag * 1000:.1f} ms", "< 100 ms"),
    ]


async def _written(path: Path) -> list[Row]:
    """Sign-ins that wait for the disk, one after the other and many at once."""
    tokens = Tokens(SqliteTokenStore(path))
    user = UserInfo("ann", groups=("dev", "ops"))
    await tokens.issue(user, provider="staff")
    few = SIGN_INS // 20
    started = time.perf_counter()
    for _ in range(few):
        await tokens.issue(user, provider="staff")
    alone = (time.perf_counter() - started) / few
    started = time.perf_counter()
    for _ in range(SIGN_INS // AT_ONCE):
        await asyncio.gather(*(tokens.issue(user, provider="staff") for _ in range(AT_ONCE)))
    together = (time.perf_counter() - started) / SIGN_INS
    await tokens.store.close()
    return [
        Row("sign-ins, each on the disk, one by one", f"{1 / alone:,.0f} / s"),
        Row(f"sign-ins, each on the disk, {AT_ONCE} at once", f"{1 / together:,.0f} / s"),
        Row("one by one / at once, time each", f"{alone / together:.1f}", ">= 3"),
    ]


def _session(number: int) -> tuple[Session, list[TokenRecord]]:
    now = SYSTEM_CLOCK.now()
    groups = ("system:authenticated", f"team-{number % 500}", f"project-{number % 90}-developers")
    user = UserInfo(f"user-{number % 20_000}@example.com", f"{number:032x}", groups)
    ends_at = now + timedelta(hours=24)
    session = Session(f"{number:022d}", user, "staff", now, ends_at, tuple((group, "file") for group in groups), "x")
    kinds = [TokenKind.ACCESS, TokenKind.RENEWAL] + [TokenKind.SPENT] * (PER_SESSION - 2)
    records = [TokenRecord(_digest(number, place), session.id, now, ends_at, kind) for place, kind in enumerate(kinds)]
    return session, records


def _digest(number: int, place: int) -> bytes:
    return digest(f"{number}-{place}")


def _plain(db: sqlite3.Connection, digests: list[bytes]) -> None:
    for each in digests:
        db.execute("SELECT session FROM tokens WHERE digest = ?", (each,)).fetchone()


def _dict(table: dict[bytes, bytes], tokens: list[bytes]) -> None:
    for token in tokens:
        assert well_formed(token)
        assert table.get(digest(token)) is not None


def _timed(way: Callable[[], None]) -> float:
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


async def _revocation_lag(store: SqliteTokenStore, path: Path) -> float:
    command = SqliteTokenStore(path)
    lags = []
    for number in range(REVOCATIONS):
        head = (await store.revocations_after(None)).head
        waiting = asyncio.ensure_future(store.wait_for_revocations(head, 1.0))
        await asyncio.sleep(random.random() / 100)
        await command.revoke(Revocation(RevocationKind.SESSION, f"none-{number}"))
        started = time.perf_counter()
        await waiting
        lags.append(time.perf_counter() - started)
    await command.close()
    return statistics.median(lags)


def _memory() -> int:
    """The most that this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    fill(sys.argv[1])
