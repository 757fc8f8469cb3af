"""The schema: created once, by one of many; versions that can and cannot be used."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, SessionKind
from ostiary_gateway.stores.postgresql.database import VERSION, Migrations
from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.stores.stored_session import KINDS, micros
from ostiary_gateway.testing.token_store import digest_of
from tests.support.postgresql import PostgresServer
from tests.support.postgresql_store import settings_for
from tests.unit.ostiary_gateway.stores.postgresql.stores import sign_in, unavailable

NEXT = VERSION + 1


def next_version(settings: PostgresqlSettings, *, usable_from: int, statements: str) -> Migrations:
    usable = dict.fromkeys(range(1, NEXT), 1)
    return Migrations(
        version=NEXT,
        usable_from={**usable, NEXT: usable_from},
        scripts={NEXT: statements.replace("@schema@", settings.schema)},
    )


async def test_of_many_that_start_at_once_one_creates_the_schema(settings: PostgresqlSettings) -> None:
    stores = [PostgresqlTokenStore(settings) for _ in range(6)]
    await asyncio.gather(*(sign_in(store, f"s{number}") for number, store in enumerate(stores)))
    assert [await store.count() for store in stores] == [6] * 6
    await asyncio.gather(*(store.close() for store in stores))


async def test_two_versions_use_one_schema_side_by_side(settings: PostgresqlSettings) -> None:
    """A rolling update: the new version has changed the schema, and replicas of the old one go on, and start anew."""
    old = PostgresqlTokenStore(settings)
    await sign_in(old, "before")
    added = "ALTER TABLE @schema@.sessions ADD COLUMN colour text NOT NULL DEFAULT ''"
    new = PostgresqlTokenStore(settings, migrations=next_version(settings, usable_from=VERSION, statements=added))
    await sign_in(new, "by the new one")
    await sign_in(old, "by the old one")
    started = PostgresqlTokenStore(settings)
    for store in (old, new, started):
        for name in ("before", "by the new one", "by the old one"):
            assert await store.find(digest_of(name)) is not None
    assert await started.revoke(Revocation(RevocationKind.USER, "ann")) == 3
    assert await new.sessions() == await old.sessions() == []
    for store in (old, new, started):
        await store.close()


# As version 1 calls them: its parameters, with times of the clock in $3 and after.
OLD_ADD = """SELECT outcome FROM {schema}.add_session(NULL, 0, NULL, 'old', 'ann', {now}, {now} + 3600000000,
    '["",["dev"],[],"staff",[],"",""]', '{{dev}}', ARRAY['{renewal}', '{access}']::bytea[], '{{1,0}}',
    '{{{now},{now}}}', ARRAY[{now} + 3600000000, {now} + 900000000], NULL)"""
OLD_RENEW = """SELECT outcome FROM {schema}.renew_session(NULL, 0, NULL, 'old', 'ann', {now}, {now} + 3600000000,
    '["",["ops"],[],"staff",[],"",""]', '{{ops}}', ARRAY['{new}'::bytea], '{{0}}', '{{{now}}}',
    ARRAY[{now} + 900000000], '{renewal}', {now}, NULL)"""
# What version 1 reads of a token; it refuses kinds other than 0 to 3.
OLD_FIND = (
    "SELECT t.kind FROM {schema}.tokens t JOIN {schema}.sessions s ON s.number = t.session WHERE digest = '{digest}'"
)


def as_bytea(name: str) -> str:
    return "\\x" + digest_of(name).hex()


async def test_the_version_before_goes_on_with_this_one_and_takes_no_narrowed_token_for_a_whole_one(
    settings: PostgresqlSettings, store: PostgresqlTokenStore, postgresql_15: PostgresServer
) -> None:
    """Version 1 signs in and renews; narrowed tokens of this version end with the change of groups."""
    first = PostgresqlTokenStore(settings, migrations=Migrations(version=1))
    await first._database.fetch("SELECT 1", repeatable=True)
    values = {
        "schema": settings.schema,
        "now": micros(datetime.now(UTC)),
        "renewal": as_bytea("old renewal"),
        "access": as_bytea("old access"),
        "new": as_bytea("new access"),
    }
    assert postgresql_15.sql(OLD_ADD.format(**values)) == "1"
    entry = await store.find(digest_of("old access"))
    assert entry is not None
    assert (entry.session.kind, entry.session.name, entry.session.last_used_at) == (SessionKind.SIGN_IN, "", None)
    assert entry.token.delegation == ""
    narrowed = replace(entry.token, digest=digest_of("narrowed"), delegation="less")
    assert await store.add_tokens("old", [narrowed])
    kind = postgresql_15.sql(OLD_FIND.format(**values, digest=as_bytea("narrowed")))
    assert int(kind) not in KINDS.values()
    assert postgresql_15.sql(OLD_RENEW.format(**values)) == "1"
    assert await store.find(digest_of("narrowed")) is None
    assert await store.find(digest_of("new access")) is not None
    await first.close()


async def test_a_schema_of_a_version_that_cannot_be_used_is_refused(settings: PostgresqlSettings) -> None:
    migrations = next_version(settings, usable_from=NEXT, statements="DROP TABLE @schema@.notes")
    new = PostgresqlTokenStore(settings, migrations=migrations)
    await sign_in(new, "s1")
    old = PostgresqlTokenStore(settings)
    error = await unavailable(old.find(digest_of("s1")))
    assert error.cause == f"the schema has version {NEXT}, and this ostiary knows up to {VERSION}"
    assert error.hint == "use the version of ostiary that wrote it, or name another schema"
    for store in (old, new):
        await store.close()


async def test_a_step_that_fails_changes_nothing(settings: PostgresqlSettings, store: PostgresqlTokenStore) -> None:
    await sign_in(store, "s1")
    broken = next_version(
        settings, usable_from=NEXT, statements="DROP TABLE @schema@.tokens; SELECT * FROM @schema@.nothing"
    )
    new = PostgresqlTokenStore(settings, migrations=broken)
    await unavailable(new.heartbeat())
    assert await store.find(digest_of("s1")) is not None
    await new.close()


async def test_a_schema_with_tables_of_another_program_is_left_alone(
    settings: PostgresqlSettings, postgresql_15: PostgresServer
) -> None:
    postgresql_15.sql(f"CREATE SCHEMA {settings.schema}", f"CREATE TABLE {settings.schema}.theirs ()")
    postgresql_15.sql(f"GRANT ALL ON SCHEMA {settings.schema} TO ostiary")
    error = await unavailable(PostgresqlTokenStore(settings).heartbeat())
    assert error.cause == "the schema has tables of another program"


async def test_an_empty_schema_that_was_made_for_it_is_used(
    settings: PostgresqlSettings, store: PostgresqlTokenStore, postgresql_15: PostgresServer
) -> None:
    postgresql_15.sql(f"CREATE SCHEMA {settings.schema} AUTHORIZATION ostiary")
    await sign_in(store, "s1")


async def test_two_gateways_share_a_database_in_schemas_of_their_own(
    store: PostgresqlTokenStore, postgresql_15: PostgresServer, tmp_path: Path
) -> None:
    other = PostgresqlTokenStore(settings_for(postgresql_15, folder=tmp_path))
    await sign_in(store, "s1")
    assert await other.find(digest_of("s1")) is None
    await other.revoke(Revocation(RevocationKind.BEFORE, ""))
    assert await store.find(digest_of("s1")) is not None
    assert (await store.revocations_after(None)).head == 0
    await other.close()


async def test_a_database_whose_encoding_cannot_hold_every_name_is_refused(
    tmp_path: Path, postgresql_15: PostgresServer
) -> None:
    name = settings_for(postgresql_15, folder=tmp_path).schema
    postgresql_15.sql(f"CREATE DATABASE {name} OWNER ostiary ENCODING 'LATIN1' TEMPLATE template0")
    store = PostgresqlTokenStore(settings_for(postgresql_15, folder=tmp_path, database=name))
    error = await unavailable(store.heartbeat())
    assert error.cause == "the database has the encoding LATIN1, and names need UTF8"
    await store.close()
    postgresql_15.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("default", ["serializable", "repeatable read"])
async def test_the_default_isolation_of_the_role_does_not_matter(
    settings: PostgresqlSettings, postgresql_15: PostgresServer, default: str
) -> None:
    postgresql_15.sql(f"ALTER ROLE ostiary SET default_transaction_isolation = '{default}'")
    store = PostgresqlTokenStore(settings)
    try:
        await asyncio.gather(*(sign_in(store, f"s{number}") for number in range(30)))
        assert await store.count() == 30
    finally:
        postgresql_15.sql("ALTER ROLE ostiary RESET default_transaction_isolation")
        await store.close()
