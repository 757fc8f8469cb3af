"""Fixtures for replicas that share a token store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.postgresql import PostgresServer
from tests.support.postgresql_store import settings_for
from tests.support.redis import RedisServer, redis_server
from tests.support.replicas import ReplicaPair

_numbers = count()


@pytest.fixture(scope="session")
def redis_of_replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests of a process: each has a prefix of its own."""
    with redis_server(tmp_path_factory.mktemp("redis") / "server") as server:
        yield server


# One of them in every run: they keep the same contract.
@pytest.fixture(params=["postgresql", pytest.param("redis", marks=pytest.mark.slow)])
def replica_store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The ``store`` of a configuration, of its own for each test."""
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_of_replicas")
        return {"type": "redis", "address": redis.address, "prefix": f"test-{next(_numbers)}"}
    server: PostgresServer = request.getfixturevalue("postgresql_15")
    settings = settings_for(server, folder=tmp_path)
    return {
        "type": "postgresql",
        "hosts": list(settings.hosts),
        "database": settings.database,
        "user": settings.user,
        "passwordFile": str(settings.password_file),
        "schema": settings.schema,
    }


@pytest.fixture
def replicas(tmp_path: Path, ca: trustme.CA, replica_store: dict[str, Any]) -> ReplicaPair:
    return ReplicaPair(tmp_path, ca, replica_store)
