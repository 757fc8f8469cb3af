"""A database that is away, read-only, slow, full, damaged or another one; and what is repeated by itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.testing.token_store import digest_of
from tests.support.postgresql import DATABASE, USER, PostgresServer
from tests.support.postgresql_store import settings_for
from tests.support.retrying import until_it_works
from tests.support.small_disk import Filler, small_disk
from tests.unit.ostiary_gateway.stores.postgresql.stores import session_of, sign_in, token_of, unavailable

# --- away ---


async def test_a_database_that_is_away_at_the_start_is_named(tmp_path: Path, server: PostgresServer) -> None:
    server.stop()
    store = PostgresqlTokenStore(settings_for(server, folder=tmp_path))
    error = await unavailable(store.find(digest_of("t")))
    assert error.cause == "the database cannot be reached: connection refused"
    assert f"127.0.0.1:{server.port}" in str(error.where)
    server.start()
    await sign_in(store, "s1")
    await store.close()


async def test_a_database_that_goes_away_later_and_comes_back_is_used_again(
    tmp_path: Path, server: PostgresServer
) -> None:
    store = PostgresqlTokenStore(settings_for(server, folder=tmp_path))
    await sign_in(store, "s1")
    server.kill()
    await unavailable(store.find(digest_of("s1")))
    await unavailable(store.revoke(Revocation(RevocationKind.USER, "ann")))
    server.start()
    assert await store.find(digest_of("s1")) is not None
    await store.close()


async def test_a_question_is_repeated_when_its_connection_breaks(
    store: PostgresqlTokenStore, postgresql_15: PostgresServer, settings: PostgresqlSettings
) -> None:
    await sign_in(store, "s1")
    postgresql_15.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'")
    assert await store.find(digest_of("s1")) is not None


async def test_what_may_have_been_committed_is_not_repeated_and_not_acknowledged(
    store: PostgresqlTokenStore, postgresql_15: PostgresServer, settings: PostgresqlSettings
) -> None:
    await store.heartbeat()
    # The connection ends in the middle of the call. A sequence counts the attempts: no rollback sets it back.
    postgresql_15.sql(
        f"""CREATE SEQUENCE {settings.schema}.attempts;
        GRANT ALL ON SEQUENCE {settings.schema}.attempts TO {USER};
        CREATE FUNCTION {settings.schema}.hang_up() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN
            PERFORM nextval('{settings.schema}.attempts');
            PERFORM pg_terminate_backend(pg_backend_pid());
            RETURN NEW;
        END $$;
        CREATE TRIGGER hang_up BEFORE INSERT ON {settings.schema}.sessions
            FOR EACH ROW EXECUTE FUNCTION {settings.schema}.hang_up()"""
    )
    error = await unavailable(sign_in(store, "s1"))
    assert error.cause is not None
    assert error.cause.startswith(("the server is going down", "the connection broke"))
    assert postgresql_15.sql(f"SELECT last_value FROM {settings.schema}.attempts") == "1"


async def test_adding_the_same_twice_is_harmless(store: PostgresqlTokenStore) -> None:
    """The answer of the first time may be lost."""
    session = await sign_in(store, "s1")
    await store.add(session, [token_of(session)])
    assert await store.count() == 1
    assert await store.sessions() == [session]


async def test_a_token_that_was_revoked_meanwhile_is_not_added_again(store: PostgresqlTokenStore) -> None:
    session = replace(session_of("s1"), sequence=(await store.revocations_after(None)).head)
    await store.add(session, [token_of(session)])
    await store.revoke(Revocation(RevocationKind.TOKEN, digest_of("s1").hex()))
    with pytest.raises(Exception, match="revoked"):
        await store.add(session, [token_of(session)])
    assert await store.find(digest_of("s1")) is None


# --- read-only, slow, full ---


async def test_a_server_that_takes_no_writes_is_named_and_used_again_when_it_does(
    tmp_path: Path, server: PostgresServer
) -> None:
    store = PostgresqlTokenStore(settings_for(server, folder=tmp_path))
    await sign_in(store, "s1")
    server.configure("default_transaction_read_only", "on")
    server.wait_until("SHOW default_transaction_read_only", "on")
    error = await unavailable(store.heartbeat())
    assert error.cause is not None
    assert "takes writes" in error.cause or "takes no writes" in error.cause
    server.sql("SET default_transaction_read_only = off", "ALTER SYSTEM RESET default_transaction_read_only")
    server.sql("SELECT pg_reload_conf()")
    await until_it_works(lambda: sign_in(store, "s2"))
    await store.close()


async def test_a_lock_that_somebody_holds_costs_no_more_than_the_time_limit(
    tmp_path: Path, postgresql_15: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server has time to say itself that the limit is over, however busy the machine.
    monkeypatch.setattr("ostiary_gateway.stores.postgresql.connections.PATIENCE_SECONDS", 30.0)
    settings = settings_for(postgresql_15, folder=tmp_path)
    patient, hasty = PostgresqlTokenStore(settings), PostgresqlTokenStore(replace(settings, command_timeout=0.3))
    await sign_in(patient, "s1")
    await until_it_works(lambda: hasty.find(digest_of("s1")))
    other = await asyncpg.connect(
        host=str(postgresql_15.folder), port=postgresql_15.port, user="postgres", database=DATABASE
    )
    await other.execute(f"BEGIN; LOCK TABLE {settings.schema}.tokens IN ACCESS EXCLUSIVE MODE")
    async with asyncio.timeout(40):
        error = await unavailable(hasty.find(digest_of("s1")))
    assert error.cause is not None
    assert error.cause.startswith("the database took too long: it is slow, or a lock is held")
    await other.execute("ROLLBACK")
    assert await until_it_works(lambda: hasty.find(digest_of("s1"))) is not None
    await other.close()
    for store in (patient, hasty):
        await store.close()


async def test_a_server_that_hangs_costs_no_more_than_the_time_limit(tmp_path: Path, server: PostgresServer) -> None:
    settings = settings_for(server, folder=tmp_path)
    patient = PostgresqlTokenStore(settings)
    hasty = PostgresqlTokenStore(replace(settings, command_timeout=0.3, connect_timeout=0.3))
    await sign_in(patient, "s1")
    await until_it_works(lambda: hasty.find(digest_of("s1")))
    server.pause()
    async with asyncio.timeout(40):
        for _ in range(2):
            error = await unavailable(hasty.find(digest_of("s1")))
            assert error.cause == "the database did not answer in time: it hangs, or cannot be reached"
    server.resume()
    assert await until_it_works(lambda: hasty.find(digest_of("s1"))) is not None
    for store in (patient, hasty):
        await store.close()


async def test_a_disk_that_is_full_is_named_and_nothing_is_acknowledged(tmp_path: Path, server: PostgresServer) -> None:
    folder = server.folder / "small"
    with small_disk(folder, "2m") as disk:
        server.give_folder(disk / "space")
        server.sql(f"CREATE TABLESPACE small LOCATION '{disk}/space'", f"GRANT ALL ON TABLESPACE small TO {USER}")
        server.sql(f"ALTER ROLE {USER} SET default_tablespace = small")
        store = PostgresqlTokenStore(settings_for(server, folder=tmp_path))
        await sign_in(store, "s1")
        filler = Filler(disk)
        filler.fill()
        error, acknowledged = None, 1
        while error is None:
            try:
                await sign_in(store, f"n{acknowledged}")
                acknowledged += 1
            except Exception:  # the next one is looked at
                error = await unavailable(sign_in(store, "last"))
            assert acknowledged < 5000, "the disk has no end"
        assert error.cause is not None
        assert error.cause.startswith("the disk of the database is full")
        assert await store.count() == acknowledged
        filler.make_room()
        await sign_in(store, "again")
        await store.close()
        server.kill()


# --- not ours to use ---


async def test_a_wrong_password_is_named_and_a_new_one_is_read(tmp_path: Path, server: PostgresServer) -> None:
    settings = settings_for(server, folder=tmp_path)
    assert settings.password_file is not None
    right = settings.password_file.read_text()
    settings.password_file.write_text("another secret\n")
    store = PostgresqlTokenStore(settings)
    error = await unavailable(store.heartbeat())
    assert error.cause is not None
    assert error.cause.startswith("the password is wrong")
    assert "another secret" not in str(error)
    settings.password_file.write_text(right)
    await store.heartbeat()
    await store.close()


async def test_an_unknown_database_is_named(tmp_path: Path, postgresql_15: PostgresServer) -> None:
    store = PostgresqlTokenStore(settings_for(postgresql_15, folder=tmp_path, database="nowhere"))
    error = await unavailable(store.heartbeat())
    assert error.cause == 'the database does not exist (database "nowhere" does not exist)'
    await store.close()


async def test_a_password_file_that_is_missing_is_named(tmp_path: Path, postgresql_15: PostgresServer) -> None:
    settings = settings_for(postgresql_15, folder=tmp_path, password_file=tmp_path / "nothing")
    error = await unavailable(PostgresqlTokenStore(settings).heartbeat())
    assert error.cause == "the file of store.passwordFile cannot be read: No such file or directory"


async def test_a_missing_privilege_is_named(tmp_path: Path, server: PostgresServer) -> None:
    server.sql("CREATE DATABASE foreign_one")
    store = PostgresqlTokenStore(settings_for(server, folder=tmp_path, database="foreign_one"))
    error = await unavailable(store.heartbeat())
    assert error.cause == "the role lacks a privilege (permission denied for database foreign_one)"
    await store.close()


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        ("DROP TABLE {schema}.tokens", "the schema is damaged: a table is missing"),
        ("ALTER TABLE {schema}.sessions DROP COLUMN body", "the schema is damaged: a table, a column or a function"),
        ("DROP FUNCTION {schema}.begin_change", "the schema is damaged: a table, a column or a function"),
        ("DELETE FROM {schema}.state", "the schema is damaged: the row of the table state is missing"),
    ],
)
async def test_a_damaged_schema_is_named(
    store: PostgresqlTokenStore,
    postgresql_15: PostgresServer,
    settings: PostgresqlSettings,
    damage: str,
    cause: str,
) -> None:
    await sign_in(store, "s1")
    postgresql_15.sql(damage.format(schema=settings.schema))
    error = await unavailable(sign_in(store, "s2"))
    assert error.cause is not None
    assert error.cause.startswith(cause)
