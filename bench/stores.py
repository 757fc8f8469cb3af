"""What the stores of several replicas do in a second, and how soon a revocation is known to another replica.

Each store has a function in `STORES` that starts its server and gives a maker of token stores, one for each replica.
What the stores cost whole gateways is in `bench.stores_gateways`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench import stores_gateways
from bench.pace import pace
from bench.table import Row
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, TokenStore
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.stores.redis.settings import RedisSettings, SentinelSettings
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from tests.support.postgresql import DATABASE, PASSWORD, USER, running
from tests.support.redis import SENTINEL_NAME, redis_server, redis_with_sentinels

TURNS, SIGN_INS, AT_ONCE = pace(5, quick=1), pace(2000, quick=200), 64
LOOKUPS, REVOCATIONS = pace(4000, quick=400), pace(300, quick=5)
LIMIT_SECONDS = 10.0

MakeStore = Callable[[], TokenStore]
StartServer = Callable[[], AbstractContextManager[MakeStore]]


@contextmanager
def postgresql(*, notifications: bool = True) -> Iterator[MakeStore]:
    """With commits on the disk."""
    with tempfile.TemporaryDirectory() as folder, running(config="fsync = on\n") as server:
        password = Path(folder) / "password"
        password.write_text(PASSWORD)
        settings = PostgresqlSettings(
            hosts=(f"{server.host}:{server.port}",),
            database=DATABASE,
            user=USER,
            password_file=password,
            notifications=notifications,
        )
        yield lambda: PostgresqlTokenStore(settings)


@contextmanager
def redis() -> Iterator[MakeStore]:
    """With the append-only file on the disk once a second."""
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder), "appendfsync everysec") as server:
        settings = RedisSettings(address=server.address)
        yield lambda: RedisTokenStore(settings)


@contextmanager
def redis_with_replicas() -> Iterator[MakeStore]:
    """Two replicas, of which one confirms each sign-in and each revocation."""
    with (
        tempfile.TemporaryDirectory() as folder,
        # A busy machine is no reason to replace the primary here.
        redis_with_sentinels(Path(folder), "appendfsync everysec", down_after=30_000) as site,
    ):
        sentinel = SentinelSettings(name=SENTINEL_NAME, addresses=site.sentinel_addresses)
        settings = RedisSettings(sentinel=sentinel, wait_replicas=1)
        yield lambda: RedisTokenStore(settings)


STORES: dict[str, StartServer] = {
    "PostgreSQL 15": postgresql,
    "Redis 7": redis,
    "Redis 7 with Sentinels, confirmed by a replica": redis_with_replicas,
}


def run() -> Iterator[Row]:
    before = os.getloadavg()[0]
    for name, start in STORES.items():
        with start() as make:
            yield from asyncio.run(_measured(name, make))
    yield from stores_gateways.run()
    yield Row(
        f"what else the machine did: load average before and after, with {os.cpu_count()} cores",
        f"{before:.1f}, {os.getloadavg()[0]:.1f}",
    )


async def _measured(name: str, make: MakeStore) -> list[Row]:
    store, other = make(), make()
    try:
        signed_in = [await _sign_ins(store) for _ in range(TURNS)]
        found = await _lookups(store)
        lags = await _revocation_lags(store, other)
    finally:
        await store.close()
        await other.close()
    middle, late = statistics.median(lags), statistics.quantiles(lags, n=100)[98]
    return [
        Row(
            f"{name}: sign-ins, {AT_ONCE} at once, each committed, the best of {TURNS} turns",
            f"{max(signed_in):,.0f} / s (median {statistics.median(signed_in):,.0f})",
            ">= 1,000 / s",
        ),
        Row(f"{name}: look-ups of tokens that are not in memory, {AT_ONCE} at once", f"{found:,.0f} / s"),
        Row(f"{name}: revoked on one replica until known to another, median", f"{middle * 1000:.1f} ms", "< 20 ms"),
        Row(f"{name}: the same, 99 of 100", f"{late * 1000:.1f} ms", "< 200 ms"),
    ]


async def _sign_ins(store: TokenStore) -> float:
    """Whole sign-ins, as the gateway makes them: the last revocation, the session, the user's other sessions."""
    tokens = Tokens(store)
    await tokens.issue(UserInfo("first", groups=("dev", "ops")), provider="staff")

    async def sign_in(start: int) -> None:
        for number in range(start, SIGN_INS, AT_ONCE):
            await tokens.issue(UserInfo(f"user-{number}", groups=("dev", "ops")), provider="staff")

    started = time.perf_counter()
    await asyncio.gather(*(sign_in(start) for start in range(AT_ONCE)))
    return SIGN_INS / (time.perf_counter() - started)


async def _lookups(store: TokenStore) -> float:
    tokens = Tokens(store)
    token = (await tokens.issue(UserInfo("ann"), provider="staff")).token.reveal()

    async def look_up() -> None:
        for _ in range(LOOKUPS // AT_ONCE):
            assert await tokens.find(token) is not None

    started = time.perf_counter()
    await asyncio.gather(*(look_up() for _ in range(AT_ONCE)))
    return LOOKUPS // AT_ONCE * AT_ONCE / (time.perf_counter() - started)


async def _revocation_lags(store: TokenStore, other: TokenStore) -> list[float]:
    """From the beginning of a revocation until another replica has read it."""
    lags = []
    head = (await other.revocations_after(None)).head
    # The first wait begins to listen.
    await other.wait_for_revocations(head, 1.0)
    for number in range(REVOCATIONS):
        following = asyncio.ensure_future(_follow(other, head))
        started = time.perf_counter()
        await store.revoke(Revocation(RevocationKind.USER, f"nobody-{number}"))
        head = await following
        lags.append(time.perf_counter() - started)
    return lags


async def _follow(store: TokenStore, after: int) -> int:
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            await store.wait_for_revocations(after, 1.0)
            batch = await store.revocations_after(after)
            if batch.head != after:
                return batch.head
