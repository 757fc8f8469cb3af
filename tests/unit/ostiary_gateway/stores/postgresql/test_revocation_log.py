"""A server that was replaced confirms nothing, and a revocation of very many sessions is made in portions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.stores.postgresql.revocation_log import END_BATCH
from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.testing.token_store import digest_of
from tests.support.postgresql import PostgresServer
from tests.support.postgresql_pair import PostgresPair, postgresql_pair
from tests.support.postgresql_store import settings_for
from tests.support.retrying import until_it_works
from tests.unit.ostiary_gateway.stores.postgresql.stores import sign_in, unavailable

# --- which server confirms ---


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresPair]:
    with postgresql_pair() as pair:
        yield pair


async def test_a_server_whose_standby_does_not_confirm_it_is_not_believed_that_no_revocation_is_missing(
    pair: PostgresPair, tmp_path: Path
) -> None:
    """Its standby may have taken its place on the other side of a network that is cut in two."""
    settings = settings_for(pair.primary, folder=tmp_path)
    patient = PostgresqlTokenStore(settings)
    following, beginning = (PostgresqlTokenStore(replace(settings, command_timeout=0.5)) for _ in range(2))
    await sign_in(patient, "s1")
    head = (await until_it_works(lambda: following.revocations_after(None))).head
    pair.standby.pause()
    try:
        await unavailable(following.revocations_after(head))
        await unavailable(beginning.revocations_after(None))
        found = await until_it_works(lambda: following.find(digest_of("s1")))
        assert found is not None, "the server answers what needs no confirmation"
    finally:
        pair.standby.resume()
    await until_it_works(lambda: following.revocations_after(head))
    await until_it_works(lambda: beginning.revocations_after(None))
    for store in (patient, following, beginning):
        await store.close()


async def test_a_sign_in_waits_for_the_standby_once_and_not_twice(pair: PostgresPair, tmp_path: Path) -> None:
    """The head of the log, which every sign-in asks for, is not proved again by whoever follows the log."""
    store = PostgresqlTokenStore(settings_for(pair.primary, folder=tmp_path))
    await store.revocations_after(None)
    before = pair.primary.sql("SELECT pg_current_wal_insert_lsn()")
    await store.revocations_after(None)
    assert pair.primary.sql("SELECT pg_current_wal_insert_lsn()") == before
    await store.close()


# --- very many sessions ---

_FILL = """INSERT INTO {schema}.sessions (id, username, created_at, expires_at, body, groups, sequence)
    SELECT 'many-' || n, 'user-' || n, {now}, {now} + 3600000000, '[]', ARRAY[{schema}.name_digest('crowd')], 0
    FROM generate_series(1, {count}) n"""
_FILL_TOKENS = """INSERT INTO {schema}.tokens (digest, session, kind, issued_at, expires_at)
    SELECT sha256(convert_to(id, 'UTF8')), number, 0, created_at, expires_at FROM {schema}.sessions
    WHERE id LIKE 'many-%'"""
_COUNT_DELETED = (
    "CREATE TABLE {schema}.deleted (rows bigint)",
    """CREATE FUNCTION {schema}.count_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
        $$BEGIN INSERT INTO {schema}.deleted SELECT count(*) FROM gone; RETURN NULL; END$$""",
    """CREATE TRIGGER counting AFTER DELETE ON {schema}.sessions REFERENCING OLD TABLE AS gone
        FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_deleted()""",
)


@pytest.mark.parametrize("kind", [RevocationKind.BEFORE, RevocationKind.GROUP])
async def test_very_many_sessions_are_ended_in_portions(
    postgresql_15: PostgresServer, settings: PostgresqlSettings, store: PostgresqlTokenStore, kind: RevocationKind
) -> None:
    await sign_in(store, "other")
    many = 2 * END_BATCH + 10
    now = int(datetime.now(UTC).timestamp() * 1_000_000) - 60_000_000
    for statement in (_FILL, _FILL_TOKENS, *_COUNT_DELETED):
        postgresql_15.sql(statement.format(schema=settings.schema, count=many, now=now))
    value = "crowd" if kind is RevocationKind.GROUP else ""
    at = datetime.now(UTC) - timedelta(seconds=30) if kind is RevocationKind.BEFORE else None
    ended = await store.revoke(Revocation(kind, value, at))
    assert ended == many
    assert await store.count() == 1
    assert await store.find(digest_of("other")) is not None, "it is not what the revocation is about"
    portions = postgresql_15.sql(f"SELECT rows FROM {settings.schema}.deleted WHERE rows > 0").splitlines()
    assert max(map(int, portions)) <= END_BATCH
    assert len(portions) == 3
