"""Who waits for revocations is woken by the database, and does without where it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.testing.token_store import follow
from tests.support.postgresql import PostgresServer


@pytest.fixture
async def other(settings: PostgresqlSettings) -> AsyncIterator[PostgresqlTokenStore]:
    store = PostgresqlTokenStore(settings)
    yield store
    await store.close()


async def listening(store: PostgresqlTokenStore, *, since: int = 0) -> None:
    """Return when it would be notified."""
    notifications = store._notifications
    assert notifications is not None
    async with asyncio.timeout(20):
        while not notifications.is_listening or notifications.connections <= since:
            await store.wait_for_revocations(store._told, 0.05)


async def test_a_revocation_of_another_replica_wakes_at_once(
    store: PostgresqlTokenStore, other: PostgresqlTokenStore
) -> None:
    await store.heartbeat()
    await listening(store)
    waiting = asyncio.ensure_future(store.wait_for_revocations(0, 600))
    await asyncio.sleep(0)
    await other.revoke(Revocation(RevocationKind.USER, "ann"))
    async with asyncio.timeout(20):
        await waiting
        assert (await store.revocations_after(0)).head == 1


async def test_who_is_told_while_it_does_not_wait_does_not_wait(
    store: PostgresqlTokenStore, other: PostgresqlTokenStore
) -> None:
    await store.heartbeat()
    await listening(store)
    await other.revoke(Revocation(RevocationKind.USER, "ann"))
    async with asyncio.timeout(20):
        while store._told != 1:
            await asyncio.sleep(0.01)
        await store.wait_for_revocations(0, 600)


async def test_a_connection_that_breaks_is_made_again_and_what_it_missed_is_told(
    store: PostgresqlTokenStore,
    other: PostgresqlTokenStore,
    postgresql_15: PostgresServer,
    settings: PostgresqlSettings,
) -> None:
    await store.heartbeat()
    await listening(store)
    postgresql_15.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE query LIKE '%{settings.schema}%' AND query LIKE '%head%state%' AND pid <> pg_backend_pid()"
    )
    await other.revoke(Revocation(RevocationKind.USER, "ann"))
    assert [each.value for each in (await follow(store, 0)).revocations] == ["ann"]
    await listening(store, since=1)


async def test_without_notifications_polling_is_enough(settings: PostgresqlSettings) -> None:
    quiet = replace(settings, notifications=False)
    store, other = PostgresqlTokenStore(quiet), PostgresqlTokenStore(quiet)
    await store.heartbeat()
    following = asyncio.ensure_future(follow(store, 0))
    await other.revoke(Revocation(RevocationKind.USER, "ann"))
    assert [each.value for each in (await following).revocations] == ["ann"]
    for each in (store, other):
        await each.close()


async def test_a_head_that_a_failover_set_back_makes_nobody_ask_all_the_time(store: PostgresqlTokenStore) -> None:
    await store.heartbeat()
    await store.revoke(Revocation(RevocationKind.USER, "ann"))
    await listening(store)
    store._tell(7)
    assert (await store.revocations_after(1)).head == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await store.wait_for_revocations(1, 600)


async def test_what_is_no_number_wakes_nobody(
    store: PostgresqlTokenStore, postgresql_15: PostgresServer, settings: PostgresqlSettings
) -> None:
    await store.heartbeat()
    await listening(store)
    postgresql_15.sql(f"NOTIFY ostiary_{settings.schema}, 'nonsense'", f"NOTIFY ostiary_{settings.schema}, '3'")
    async with asyncio.timeout(20):
        while store._told != 3:
            await asyncio.sleep(0.01)
