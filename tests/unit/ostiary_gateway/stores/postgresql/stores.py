"""What the tests of the PostgreSQL store do with it."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Session, TokenRecord
from ostiary_gateway.stores.postgresql.token_store import PostgresqlTokenStore
from ostiary_gateway.testing.token_store import digest_of
from tests.support.postgresql import PASSWORD


def session_of(name: str, *, minutes: float = 60, now: datetime | None = None) -> Session:
    start = now or datetime.now(UTC)
    return Session(name, UserInfo("ann", groups=("dev",)), "staff", start, start + timedelta(minutes=minutes))


def token_of(session: Session) -> TokenRecord:
    return TokenRecord(digest_of(session.id), session.id, session.created_at, session.expires_at)


async def sign_in(store: PostgresqlTokenStore, name: str) -> Session:
    session = session_of(name)
    await store.add(session, [token_of(session)])
    return session


async def unavailable(work: Awaitable[object]) -> ProviderError:
    """The error of *work*, which names its cause and no secret."""
    with pytest.raises(ProviderError) as caught:
        await work
    error = caught.value
    assert error.code == "token-store-unavailable"
    assert PASSWORD not in str(error)
    assert PASSWORD not in repr(error)
    return error
