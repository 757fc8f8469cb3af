"""The PostgreSQL store keeps the contract of a token store: on two versions, behind a pooler, for two replicas.

On the newer version and behind the pooler only `DeploymentContract` runs: connections, transactions and notifications
differ there, and what a statement means does not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.shared_counts import SharedCounts
from ostiary_gateway.interfaces.token_store import TokenStore
from ostiary_gateway.limits.replicated_counts import StoreCounts
from ostiary_gateway.stores.postgresql import replica_tables
from ostiary_gateway.stores.postgresql import sessions as sign_in_records
from ostiary_gateway.stores.postgresql.settings import Pooler, PostgresqlSettings
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.shared_counts import SharedCountsContract
from ostiary_gateway.testing.token_store import (
    OriginStoreContract,
    PortableStoreContract,
    ReplicaStoreContract,
    SessionPagesContract,
    SharedObjectStoreContract,
    SharedRecordStoreContract,
    SharedTokenStoreContract,
    StoredObjectCountsContract,
)
from tests.conformance.token_stores.deployment import DeploymentContract
from tests.conformance.token_stores.full_kind import FullKindContract
from tests.support.postgresql import PgBouncer, PostgresServer, pgbouncer
from tests.support.postgresql_store import Schemas, settings_for


@pytest.fixture(scope="module")
def schemas(postgresql_15: PostgresServer) -> Schemas:
    return Schemas(postgresql_15)


@pytest.fixture(scope="module")
def schemas_18(postgresql_18: PostgresServer) -> Schemas:
    return Schemas(postgresql_18)


class Stores:
    """Two stores over the same schema, and one over another; nothing is stored in either."""

    @pytest.fixture
    async def settings(
        self, postgresql_15: PostgresServer, schemas: Schemas, tmp_path: Path
    ) -> AsyncIterator[PostgresqlSettings]:
        async with schemas.lent() as schema:
            yield settings_for(postgresql_15, folder=tmp_path, schema=schema)

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

    @pytest.fixture
    async def empty(
        self, settings: PostgresqlSettings, schemas: Schemas, clock: FakeClock
    ) -> AsyncIterator[PostgresqlTokenStore]:
        async with schemas.lent() as schema:
            store = PostgresqlTokenStore(replace(settings, schema=schema), clock=clock, database_clock=clock)
            yield store
            await store.close()


class TestPostgresqlTokenStore(
    Stores,
    SharedTokenStoreContract,
    SharedRecordStoreContract,
    SharedObjectStoreContract,
    StoredObjectCountsContract,
    FullKindContract,
    OriginStoreContract,
    ReplicaStoreContract,
    PortableStoreContract,
    SessionPagesContract,
):
    """Everything that the store keeps."""

    most_records = 500

    @pytest.fixture(autouse=True)
    def fewer_records_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sign_in_records, "MOST_RECORDS", self.most_records)


class TestPostgresql18TokenStore(Stores, DeploymentContract):
    @pytest.fixture
    def schemas(self, schemas_18: Schemas) -> Schemas:
        return schemas_18

    @pytest.fixture
    async def settings(
        self, postgresql_18: PostgresServer, schemas: Schemas, tmp_path: Path
    ) -> AsyncIterator[PostgresqlSettings]:
        async with schemas.lent() as schema:
            yield settings_for(postgresql_18, folder=tmp_path, schema=schema)


@pytest.fixture(scope="module")
def pooler(postgresql_18: PostgresServer) -> Iterator[PgBouncer]:
    with pgbouncer(postgresql_18, connections=3) as pooler:
        yield pooler


class TestBehindPgBouncer(Stores, DeploymentContract):
    """In transaction mode, with fewer connections to the server than the stores have to the pooler."""

    @pytest.fixture
    def schemas(self, schemas_18: Schemas) -> Schemas:
        return schemas_18

    @pytest.fixture
    async def settings(self, pooler: PgBouncer, schemas: Schemas, tmp_path: Path) -> AsyncIterator[PostgresqlSettings]:
        async with schemas.lent() as schema:
            yield settings_for(pooler, folder=tmp_path, schema=schema, pooler=Pooler.TRANSACTION)


class TestCountsInPostgresql(Stores, SharedCountsContract):
    flood = 1_500

    @pytest.fixture(autouse=True)
    def fewer_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A flood that is more than 10,000 keys, one after the other, would take ten seconds."""
        monkeypatch.setattr(replica_tables, "NARROW_LIMIT", 1_000)
        monkeypatch.setattr(replica_tables, "WIDE_LIMIT", 1_000)

    @pytest.fixture
    async def counts(self, store: PostgresqlTokenStore) -> SharedCounts:
        return StoreCounts(store)

    @pytest.fixture
    async def other(self, settings: PostgresqlSettings, clock: FakeClock) -> AsyncIterator[SharedCounts]:
        store = PostgresqlTokenStore(settings, clock=clock, database_clock=clock)
        yield StoreCounts(store)
        await store.close()
