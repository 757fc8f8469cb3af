"""The PostgreSQL store keeps the contract of a token store: on two versions, behind a pooler, for two replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ostiary.core.counting.store_counts import StoreCounts
from ostiary.interfaces.shared_counts import SharedCounts
from ostiary.interfaces.token_store import TokenStore
from ostiary.plugins.postgresql.settings import Pooler, PostgresqlSettings
from ostiary.plugins.postgresql.token_store import PostgresqlTokenStore
from ostiary.testing import FakeClock
from ostiary.testing.shared_counts import SharedCountsContract
from ostiary.testing.token_store import (
    OriginStoreContract,
    PortableStoreContract,
    ReplicaStoreContract,
    SharedObjectStoreContract,
    SharedRecordStoreContract,
    SharedTokenStoreContract,
)
from tests.conformance.token_stores.full_kind import FullKindContract
from tests.support.postgresql import PgBouncer, PostgresServer, pgbouncer
from tests.support.postgresql_store import new_schema, settings_for


class Stores:
    """Two stores over the same schema, which is the test's own."""

    @pytest.fixture
    def settings(self, postgresql_15: PostgresServer, tmp_path: Path) -> PostgresqlSettings:
        return settings_for(postgresql_15, folder=tmp_path)

    @pytest.fixture
    async def store(self, settings: PostgresqlSettings, clock: FakeClock) -> AsyncIterator[PostgresqlTokenStore]:
        store = PostgresqlTokenStore(settings, clock=clock, database_clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, settings: PostgresqlSettings, clock: FakeClock) -> AsyncIterator[TokenStore]:
        store = PostgresqlTokenStore(settings, clock=clock, database_clock=clock)
        yield store
        await store.close()


class PostgresqlContract(
    Stores,
    SharedTokenStoreContract,
    SharedRecordStoreContract,
    SharedObjectStoreContract,
    FullKindContract,
    OriginStoreContract,
    ReplicaStoreContract,
    PortableStoreContract,
):
    """Everything that the store keeps."""

    @pytest.fixture
    async def empty(self, settings: PostgresqlSettings, clock: FakeClock) -> AsyncIterator[PostgresqlTokenStore]:
        elsewhere = replace(settings, schema=new_schema())
        store = PostgresqlTokenStore(elsewhere, clock=clock, database_clock=clock)
        yield store
        await store.close()


class TestPostgresqlTokenStore(PostgresqlContract):
    pass


class TestPostgresql18TokenStore(PostgresqlContract):
    @pytest.fixture
    def settings(self, postgresql_18: PostgresServer, tmp_path: Path) -> PostgresqlSettings:
        return settings_for(postgresql_18, folder=tmp_path)


@pytest.fixture(scope="module")
def pooler(postgresql_15: PostgresServer) -> Iterator[PgBouncer]:
    with pgbouncer(postgresql_15, connections=3) as pooler:
        yield pooler


class TestBehindPgBouncer(PostgresqlContract):
    """In transaction mode, with fewer connections to the server than the stores have to the pooler."""

    @pytest.fixture
    def settings(self, pooler: PgBouncer, tmp_path: Path) -> PostgresqlSettings:
        return settings_for(pooler, folder=tmp_path, pooler=Pooler.TRANSACTION)


# Twenty thousand keys, one after the other, are forty thousand round trips.
@pytest.mark.timeout(400)
class TestCountsInPostgresql(Stores, SharedCountsContract):
    @pytest.fixture
    async def counts(self, store: PostgresqlTokenStore) -> SharedCounts:
        return StoreCounts(store)

    @pytest.fixture
    async def other(self, settings: PostgresqlSettings, clock: FakeClock) -> AsyncIterator[SharedCounts]:
        store = PostgresqlTokenStore(settings, clock=clock, database_clock=clock)
        yield StoreCounts(store)
        await store.close()
