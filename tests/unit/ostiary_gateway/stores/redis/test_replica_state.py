"""Counts under contention, and while the server hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.shared_counts import State
from ostiary_gateway.stores.redis.settings import RedisSettings
from ostiary_gateway.stores.redis.token_store import RedisTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.redis import redis_server
from tests.support.retrying import until_it_works

Open = Callable[..., RedisTokenStore]


def add_one(state: State, now: float) -> tuple[State, float, float]:
    count = (state[0] if state else 0.0) + 1
    return (count,), 60.0, count


async def test_many_processes_that_count_the_same_lose_nothing(
    open_store: Open, settings: RedisSettings, clock: FakeClock
) -> None:
    stores = [open_store(settings, clock=clock) for _ in range(8)]
    await asyncio.gather(*(store.update_counts([("k", add_one)]) for store in stores * 10))
    (counted,) = await stores[0].update_counts([("k", add_one)])
    assert counted is not None
    assert counted.result == 81


async def test_several_counts_change_together(store: RedisTokenStore, other: RedisTokenStore) -> None:
    keys = [f"k{number}" for number in range(500)]
    await asyncio.gather(*(each.update_counts([(key, add_one) for key in keys]) for each in (store, other)))
    counted = await store.update_counts([(key, add_one) for key in keys])
    assert {each.result for each in counted if each is not None} == {3.0}


async def test_whoever_counts_behind_a_server_that_hangs_is_told_soon(
    open_store: Open, settings: RedisSettings, tmp_path: Path
) -> None:
    with redis_server(tmp_path / "server") as server:
        store = open_store(replace(settings, address=server.address, timeout=0.3))
        await until_it_works(lambda: store.update_counts([("k", add_one)]))
        server.pause()
        try:
            # One after the other they would wait for a minute and a half.
            async with asyncio.timeout(45):
                results = await asyncio.gather(
                    *(store.update_counts([("k", add_one)]) for _ in range(300)), return_exceptions=True
                )
        finally:
            server.resume()
    assert {type(result) for result in results} == {ProviderError}


async def test_whoever_waits_for_a_turn_has_the_time_that_the_settings_give(
    open_store: Open, settings: RedisSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    with redis_server(tmp_path / "server") as server:
        store = open_store(replace(settings, address=server.address, timeout=60.0))
        await store.update_counts([("k", add_one)])
        server.pause()
        counting = [asyncio.ensure_future(store.update_counts([("k", add_one)])) for _ in range(2)]
        await asyncio.sleep(0)
        # As far as the loop knows, half of that time has passed.
        monkeypatch.setattr(loop, "time", lambda: time.monotonic() + 30.0)
        await asyncio.sleep(0)
        server.resume()
        results = [counted.result for (counted,) in await asyncio.gather(*counting) if counted is not None]
    assert sorted(results) == [2.0, 3.0]


async def test_a_count_that_fails_in_the_middle_leaves_the_turn_to_others(store: RedisTokenStore) -> None:
    with pytest.raises(ZeroDivisionError):
        await store.update_counts([("k", lambda state, now: (state, 1 / 0, None))])
    async with asyncio.timeout(30):
        (counted,) = await store.update_counts([("k", add_one)])
    assert counted is not None
