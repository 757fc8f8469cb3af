"""What the PostgreSQL store says of itself: before a start, when it is checked, and who else uses it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.postgresql.database import VERSION
from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from tests.support.postgresql import PostgresServer
from tests.support.postgresql_store import settings_for
from tests.unit.ostiary_gateway.stores.postgresql.stores import sign_in, unavailable

FSYNC_OFF = "the server runs with fsync = off: a crash of its machine loses everything"


async def test_a_probe_says_what_answered_and_creates_nothing(
    store: PostgresqlTokenStore, settings: PostgresqlSettings, postgresql_15: PostgresServer
) -> None:
    assert (await store.probe()).startswith("PostgreSQL 15.")
    assert f"schema {settings.schema} will be created" in await store.probe()
    assert postgresql_15.sql(f"SELECT count(*) FROM pg_namespace WHERE nspname = '{settings.schema}'") == "0"
    await store.heartbeat()
    assert f"schema {settings.schema} has version {VERSION}" in await store.probe()


async def test_a_probe_says_what_an_administrator_has_to_do(tmp_path: Path, server: PostgresServer) -> None:
    server.sql("CREATE DATABASE foreign_one")
    settings = settings_for(server, folder=tmp_path, database="foreign_one", schema="mine")
    store = PostgresqlTokenStore(settings)
    error = await unavailable(store.probe())
    assert error.cause == "the schema is missing, and the role may not create it"
    assert error.hint == "as an administrator: CREATE SCHEMA mine AUTHORIZATION ostiary"
    server.sql("CREATE SCHEMA mine AUTHORIZATION ostiary", database="foreign_one")
    assert "schema mine will be created" in await store.probe()
    await sign_in(store, "s1")
    await store.close()


async def test_a_store_without_mistakes_has_facts_alone(store: PostgresqlTokenStore) -> None:
    await sign_in(store, "s1")
    await store.revoke(Revocation(RevocationKind.USER, "bob"))
    report = await store.examine()
    facts = dict(report.facts)
    assert (facts["sessions"], facts["tokens"], facts["standbys"]) == ("1", "1", "none synchronous")
    assert facts["schema"] == f"version {VERSION} of {VERSION}"
    # The servers of the tests are quick and careless.
    assert report.problems == (FSYNC_OFF,)
    assert report.time is not None


async def test_mistakes_in_what_is_stored_are_counted(
    store: PostgresqlTokenStore, settings: PostgresqlSettings, postgresql_15: PostgresServer
) -> None:
    for name in ("s1", "s2"):
        await sign_in(store, name)
    await store.revoke(Revocation(RevocationKind.USER, "bob"))
    postgresql_15.sql(
        f"DELETE FROM {settings.schema}.sessions WHERE id = 's1'",
        f"UPDATE {settings.schema}.sessions SET sequence = 7",
        f"UPDATE {settings.schema}.state SET head = 0",
    )
    assert (await store.examine()).problems == (
        "1 tokens have no session",
        "1 revocations have numbers that are not given out yet",
        "1 sessions began after a revocation that is not there: it was lost",
        FSYNC_OFF,
    )


async def test_who_waits_for_revocations_is_known_to_others(
    store: PostgresqlTokenStore, settings: PostgresqlSettings
) -> None:
    other = PostgresqlTokenStore(settings)
    assert await other.others_using() == ()
    async with asyncio.timeout(20):
        while not await other.others_using():
            await store.wait_for_revocations(0, 0.05)
    assert await other.others_using() == ("gateway processes that wait for its revocations: 1",)
    await store.close()
    async with asyncio.timeout(20):
        while await other.others_using():
            await asyncio.sleep(0.02)
    await other.close()
