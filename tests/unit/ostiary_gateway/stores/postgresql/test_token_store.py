"""What only this store has to get right: clocks of several machines, lost commits, durability, one sweep at a time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from ostiary.errors import LoginRefused
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import digest_of
from tests.support.clocks import OffsetClock
from tests.support.postgresql import DATABASE, PostgresServer
from tests.support.postgresql_store import settings_for
from tests.support.retrying import until_it_works
from tests.unit.ostiary_gateway.stores.postgresql.stores import session_of, sign_in, token_of

# --- clocks of several machines ---


async def test_replicas_with_different_clocks_agree_on_when_a_token_ends(settings: PostgresqlSettings) -> None:
    clocks = [FakeClock(), FakeClock()]
    clocks[1].advance(hours=1)
    stores = [PostgresqlTokenStore(settings, clock=clock) for clock in clocks]
    session = session_of("s1", minutes=5, now=clocks[0].now())
    await stores[0].add(session, [token_of(session)])
    for clock, store in zip(clocks, stores, strict=True):
        entry = await store.find(digest_of("s1"))
        assert entry is not None
        for expires_at in (entry.token.expires_at, entry.session.expires_at):
            # The fake clocks stand still, and the database's does not.
            assert abs(expires_at - clock.now() - timedelta(minutes=5)) < timedelta(seconds=30)
    for store in stores:
        await store.close()


async def test_the_clock_of_the_database_decides_what_has_expired(settings: PostgresqlSettings) -> None:
    clock = FakeClock()
    store = PostgresqlTokenStore(settings, clock=clock)
    await store.heartbeat()
    session = session_of("s1", minutes=0, now=clock.now() - timedelta(seconds=2))
    await store.add(session, [token_of(session)])
    assert await store.find(digest_of("s1")) is None
    living = session_of("s2", minutes=1, now=clock.now())
    await store.add(living, [token_of(living)])
    clock.advance(hours=5)
    assert await store.find(digest_of("s2")) is not None, "only the clock of this machine was changed"
    await store.close()


async def test_a_machine_whose_clock_jumps_drops_what_it_remembers_and_stores_right_times(
    settings: PostgresqlSettings,
) -> None:
    """Cached tokens have times of this machine, which mean something else now."""
    clock = OffsetClock(timedelta(hours=-2))
    store, other = PostgresqlTokenStore(settings, clock=clock), PostgresqlTokenStore(settings)
    head = (await store.revocations_after(None)).head
    assert not (await store.revocations_after(head)).complete, "the offset was measured for the first time"
    assert (await store.revocations_after(head)).complete
    clock.set_back(hours=1)
    session = session_of("s1", minutes=5, now=clock.now())
    await store.add(session, [token_of(session)])
    entry = await other.find(digest_of("s1"))
    assert entry is not None
    right = session_of("right", minutes=5)
    assert abs(entry.token.expires_at - right.expires_at) < timedelta(seconds=30)
    assert not (await store.revocations_after(head)).complete
    assert (await store.revocations_after(head)).complete
    for each in (store, other):
        await each.close()


# --- commits that a failover lost ---


async def test_who_followed_revocations_that_a_failover_lost_drops_what_it_remembers(
    tmp_path: Path, server: PostgresServer
) -> None:
    with server.standby() as standby:
        store = PostgresqlTokenStore(settings_for(server, standby, folder=tmp_path))
        await sign_in(store, "s1")
        await store.revoke(Revocation(RevocationKind.USER, "bob"))
        server.wait_until("SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()")
        # Nothing reaches the standby any more.
        standby.configure("primary_conninfo", "")
        server.wait_until("SELECT count(*) FROM pg_stat_replication", "0")
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        assert (await store.revocations_after(1)).head == 2
        server.kill()
        standby.promote()
        under_way = replace(session_of("s2"), sequence=2)
        await until_it_works(store.heartbeat)
        assert await store.find(digest_of("s1")) is not None, "lost with the primary: that is why it is documented"
        with pytest.raises(LoginRefused):
            await store.add(under_way, [])
        batch = await store.revocations_after(2)
        assert (batch.head, batch.complete) == (1, False)
        # The number is given a second time, to another revocation.
        await store.revocations_after(None)
        store._proofs.clear()
        store._proofs[2] = "the proof of the first one"
        await store.revoke(Revocation(RevocationKind.USER, "eve"))
        batch = await store.revocations_after(2)
        assert (batch.head, batch.complete) == (2, False)
        assert (await store.revocations_after(2)).complete
        await store.close()


async def test_a_proof_is_known_as_long_as_its_number_can_be_asked_for(settings: PostgresqlSettings) -> None:
    clock = FakeClock()
    store = PostgresqlTokenStore(settings, clock=clock, database_clock=clock)
    await store.revoke(Revocation(RevocationKind.USER, "ann"))
    await store.revocations_after(None)
    assert (await store.revocations_after(1)).complete
    clock.advance(hours=2)
    await store.sweep()
    assert (await store.revocations_after(1)).complete, "it is the head, and forgotten"
    await store.revoke(Revocation(RevocationKind.USER, "bob"))
    batch = await store.revocations_after(1)
    assert ([each.value for each in batch.revocations], batch.complete) == (["bob"], True)
    await store.close()


async def test_a_reader_that_is_far_behind_is_told_to_ask_again(
    store: PostgresqlTokenStore, postgresql_15: PostgresServer, settings: PostgresqlSettings
) -> None:
    await store.heartbeat()
    postgresql_15.sql(
        f"""SELECT {settings.schema}.write_revocation('user', 'u' || number, NULL, '', 0)
        FROM generate_series(1, 10001) AS number"""
    )
    batch = await store.revocations_after(0)
    assert (batch.head, batch.revocations, batch.complete) == (10_001, (), False)
    batch = await store.revocations_after(10_000)
    assert ([each.value for each in batch.revocations], batch.complete) == (["u10001"], True)


# --- what was promised ---


async def test_a_session_cannot_slip_past_a_revocation_that_is_being_written(
    store: PostgresqlTokenStore, postgresql_15: PostgresServer, settings: PostgresqlSettings
) -> None:
    await store.heartbeat()
    head = (await store.revocations_after(None)).head
    other = await asyncpg.connect(
        host=str(postgresql_15.folder), port=postgresql_15.port, user="postgres", database=DATABASE
    )
    await other.execute("BEGIN")
    await other.fetch(f"SELECT * FROM {settings.schema}.revoke(NULL, 0, NULL, 'user', 'ann', NULL, 'root')")
    session = replace(session_of("s1"), sequence=head)
    signing_in = asyncio.ensure_future(store.add(session, [token_of(session)]))
    waiting = f"wait_event_type = 'Lock' AND query LIKE '%{settings.schema}%'"
    await asyncio.to_thread(postgresql_15.wait_until, f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}")
    assert not signing_in.done(), "it waits for the revocation"
    await other.execute("COMMIT")
    with pytest.raises(LoginRefused):
        await signing_in
    await other.close()


async def test_commits_are_durable_whatever_the_default_of_the_role_is(
    settings: PostgresqlSettings, postgresql_15: PostgresServer
) -> None:
    postgresql_15.sql("ALTER ROLE ostiary SET synchronous_commit = off")
    store = PostgresqlTokenStore(settings)
    try:
        await store.heartbeat()
        (row,) = await store._database.fetch(
            "SELECT @schema@.begin_change(NULL, 0, NULL), current_setting('synchronous_commit')", repeatable=True
        )
        assert row[1] == "on"
        (row,) = await store._database.fetch("SHOW synchronous_commit", repeatable=True)
        assert row[0] == "off", "only for the transaction"
    finally:
        postgresql_15.sql("ALTER ROLE ostiary RESET synchronous_commit")
        await store.close()


async def test_one_replica_sweeps_at_a_time_and_the_others_do_not_wait(
    store: PostgresqlTokenStore, postgresql_15: PostgresServer, settings: PostgresqlSettings
) -> None:
    session = session_of("s1", minutes=-1)
    await store.add(session, [token_of(session)])
    other = await asyncpg.connect(
        host=str(postgresql_15.folder), port=postgresql_15.port, user="postgres", database=DATABASE
    )
    await other.execute("BEGIN")
    await other.fetch(f"SELECT pg_advisory_xact_lock(1869837419, {settings.schema}.lock_number())")
    assert await store.sweep() == 0
    await other.execute("ROLLBACK")
    assert await store.sweep() == 1
    await other.close()


async def test_names_may_be_longer_than_an_index_allows(store: PostgresqlTokenStore) -> None:
    name = "n\u00e9" * 20_000
    session = session_of("s1")
    session = replace(session, user=replace(session.user, username=name, groups=(name, "dev", "dev")))
    await store.add(session, [token_of(session)])
    assert await store.sessions(username=name, group=name) == [session]
    assert await store.revoke(Revocation(RevocationKind.GROUP, name)) == 1
    assert [mark.value for mark in await store.marks()] == [name]
    await store.put_notes("t", {name: b"x"}, seconds=60)
    assert await store.find_note("t", name) is not None


async def test_nothing_of_a_store_shows_its_password(store: PostgresqlTokenStore, settings: PostgresqlSettings) -> None:
    await store.heartbeat()
    for text in (repr(store), repr(settings), settings.place, str(vars(store))):
        assert "pass'word" not in text
