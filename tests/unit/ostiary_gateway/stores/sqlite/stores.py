"""What the tests of the SQLite token store share."""

from __future__ import annotations

import sqlite3

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import make_session, make_token


async def add(store: SqliteTokenStore, clock: FakeClock, name: str) -> None:
    session = make_session(clock, name)
    await store.add(session, [make_token(session, name)])


def writer_of(store: SqliteTokenStore) -> sqlite3.Connection:
    return store._open().writer._connection


async def unavailable(work: object) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await work  # type: ignore[misc]
    assert caught.value.code == "token-store-unavailable"
    return caught.value
