"""PostgreSQL token stores, in a schema of the test's own on a server that all tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ostiary_gateway.stores.postgresql.settings import PostgresqlSettings
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from tests.support.postgresql import PostgresServer, running
from tests.support.postgresql_store import settings_for


@pytest.fixture
def settings(postgresql_15: PostgresServer, tmp_path: Path) -> PostgresqlSettings:
    return settings_for(postgresql_15, folder=tmp_path)


@pytest.fixture
async def store(settings: PostgresqlSettings) -> AsyncIterator[PostgresqlTokenStore]:
    """By the clocks of this machine and of the database."""
    store = PostgresqlTokenStore(settings)
    yield store
    await store.close()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that the test may break."""
    with running() as server:
        yield server
