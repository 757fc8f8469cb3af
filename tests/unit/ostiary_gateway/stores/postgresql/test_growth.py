"""What a PostgreSQL token store reads for a list does not grow with what it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, SessionKind
from ostiary_gateway.stores.postgresql.database import Migrations
from ostiary_gateway.stores.postgresql.sessions import select_sessions
from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings
from ostiary_gateway.stores.postgresql.store_part import NOW
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.stores.stored_session import micros
from tests.support.postgresql import PostgresServer
from tests.unit.ostiary_gateway.stores.postgresql.stores import sign_in

SESSIONS, LIMIT = 20_000, 20
BEGUN = datetime.now(UTC) - timedelta(hours=1)
# All are in one group, 50 in another; five of a user; one in a thousand is of an API token. A millisecond apart.
FILL = """INSERT INTO {schema}.sessions (id, username, created_at, expires_at, body, groups, sequence, kind)
    SELECT 's' || n, 'user-' || n / 5, {begun} + n * 1000, {begun} + 86400000000, '["",[],[],"staff",[],"",""]',
        ARRAY[{schema}.name_digest('staff'), {schema}.name_digest('team-' || n / 50)], 0,
        CASE WHEN n % 1000 = 0 THEN 2 ELSE 0 END
    FROM generate_series(1, {sessions}) AS n"""
MIDDLE = (micros(BEGUN) + SESSIONS // 2 * 1000, SESSIONS // 2)


@pytest.fixture
async def filled(store: PostgresqlTokenStore, settings: PostgresqlSettings, postgresql_15: PostgresServer) -> None:
    await store.count()
    schema = settings.schema
    # Statistics, as autovacuum makes them a moment after so many rows have come.
    postgresql_15.sql(
        FILL.format(schema=schema, begun=micros(BEGUN), sessions=SESSIONS), f"VACUUM ANALYZE {schema}.sessions"
    )


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "search",
    [
        {},
        {"after": MIDDLE},
        {"username": "user-77"},
        {"username": "user-77", "kind": SessionKind.SIGN_IN},
        {"group": "team-7"},
        {"group": "staff"},
        {"group": "staff", "after": MIDDLE},
        {"kind": SessionKind.API_TOKEN},
        {"kind": SessionKind.SIGN_IN, "after": MIDDLE},
    ],
    # Not the times among the values: those are not the same in every process that runs tests.
    ids=lambda search: " ".join(search) or "all",
)
async def test_a_page_of_sessions_reads_hardly_more_rows_than_it_shows(
    store: PostgresqlTokenStore, search: Mapping[str, Any]
) -> None:
    statement, arguments = select_sessions(
        search.get("username"),
        search.get("group"),
        search.get("kind"),
        limit=LIMIT,
        after=search.get("after"),
    )
    explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {NOW} {statement}"
    (row,) = await store._database.fetch(explain, None, 0, *arguments, repeatable=True)
    (plan,) = json.loads(row[0])
    assert sum(_rows_read(plan["Plan"])) < 10 * LIMIT, json.dumps(plan, indent=1)


def _rows_read(node: Mapping[str, Any]) -> Iterator[float]:
    """Rows of sessions that a plan has read, those that it threw away included."""
    if node.get("Relation Name") == "sessions":
        rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        yield (rows + node.get("Rows Removed by Index Recheck", 0)) * node["Actual Loops"]
    for child in node.get("Plans", ()):
        yield from _rows_read(child)


async def test_a_list_has_the_newest_first_and_each_once(store: PostgresqlTokenStore, filled: None) -> None:
    for search in ({}, {"group": "team-7"}, {"kind": SessionKind.API_TOKEN}, {"username": "user-77"}):
        ids, after = [], ""
        while page := await store.page_sessions(after=after, limit=LIMIT, **search):
            ids += [each.session.id for each in page]
            after = page[-1].place
            if len(ids) > 5 * LIMIT:
                break
        assert ids == sorted(set(ids), key=lambda name: int(name[1:]), reverse=True)


async def test_a_schema_of_the_version_before_gets_the_index(
    settings: PostgresqlSettings, store: PostgresqlTokenStore, postgresql_15: PostgresServer
) -> None:
    before = PostgresqlTokenStore(settings, migrations=Migrations(version=3))
    await sign_in(before, "s1")
    assert [each.session.id for each in await store.page_sessions(kind=SessionKind.SIGN_IN)] == ["s1"]
    # And that version goes on.
    await sign_in(before, "s2")
    await before.sweep()
    assert len(await before.sessions()) == 2
    indexes = postgresql_15.sql(f"SELECT indexname FROM pg_indexes WHERE schemaname = '{settings.schema}'")
    assert "sessions_by_kind" in indexes.split()
    await before.close()


async def test_revocations_are_forgotten_after_an_hour_and_not_before(
    settings: PostgresqlSettings, store: PostgresqlTokenStore, postgresql_15: PostgresServer
) -> None:
    for name in ("ann", "bob", "cid"):
        await store.revoke(Revocation(RevocationKind.USER, name))
    moved = (
        f"UPDATE {settings.schema}.revocations SET recorded_at = recorded_at - {{0}}, keep_until = keep_until - {{0}}"
    )
    postgresql_15.sql(
        moved.format(5400 * 10**6) + " WHERE value = 'ann'",
        moved.format(3601 * 10**6) + " WHERE value = 'bob'",
        moved.format(3500 * 10**6) + " WHERE value = 'cid'",
    )
    await store.sweep()
    assert [mark.value for mark in await store.marks()] == ["cid"]
    assert postgresql_15.sql(f"SELECT forgotten FROM {settings.schema}.state") == "2"
