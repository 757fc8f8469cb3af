"""Revocations by other processes are noticed at once, and without using the processor."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.token_store import Revocation, RevocationBatch, RevocationKind
from ostiary_gateway.stores.sqlite import store_file as file_watch
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import follow


async def test_a_revocation_by_another_connection_is_told_within_moments(path: Path, clock: FakeClock) -> None:
    """S64, S65: the file is touched, which wakes the other; it does not look before its hour is over."""
    store, command = SqliteTokenStore(path, clock=clock), SqliteTokenStore(path, clock=clock)
    waiting = asyncio.ensure_future(store.wait_for_revocations(0, 3600))
    while not store._waiting:
        await asyncio.sleep(0)
    await command.revoke(Revocation(RevocationKind.USER, "ann", clock.now()))
    await asyncio.wait_for(waiting, 30)
    assert [each.value for each in (await store.revocations_after(0)).revocations] == ["ann"]
    await command.close()
    await store.close()


async def test_without_inotify_revocations_are_looked_for(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "_watch", lambda path: None)
    store, command = SqliteTokenStore(path, clock=clock), SqliteTokenStore(path, clock=clock)
    waiting = asyncio.ensure_future(follow(store, 0))
    await command.revoke(Revocation(RevocationKind.USER, "ann", clock.now()))
    assert [each.value for each in (await waiting).revocations] == ["ann"]
    await command.close()
    await store.close()


async def test_who_waits_for_revocations_lets_the_processor_rest(
    store: SqliteTokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing happens, the file is looked at once per wait, however long that is."""
    looks = 0

    async def count(sequence: int | None) -> RevocationBatch:
        nonlocal looks
        looks += 1
        return RevocationBatch(0)

    monkeypatch.setattr(store, "revocations_after", count)
    await store.wait_for_revocations(0, 0.3)
    assert looks == 1
