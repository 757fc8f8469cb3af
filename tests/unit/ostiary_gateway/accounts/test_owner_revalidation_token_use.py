"""The use of API tokens is written in the background, together, and not without bound."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.accounts import owner_revalidation as token_use
from ostiary_gateway.accounts.owner_revalidation import TokenUse
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock


async def named(tokens: Tokens, name: str) -> Session:
    issued = await tokens.issue_token(UserInfo("alice"), provider="me", name=name, lifetime=timedelta(days=1))
    return issued.session


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    return Tokens(MemoryTokenStore(clock=clock), clock=clock)


async def test_it_is_written_while_the_gateway_runs(
    tokens: Tokens, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_use, "COLLECT_SECONDS", 0.0)
    use, sessions = TokenUse(tokens, clock), [await named(tokens, name) for name in ("a", "b")]
    task = asyncio.create_task(use.run())
    try:
        for session in sessions:
            use.note(session)
        async with asyncio.timeout(30):
            while [each.last_used_at for each in await tokens.store.sessions()] != [clock.now()] * 2:
                await asyncio.sleep(0)
    finally:
        task.cancel()


async def test_what_was_written_is_not_written_again(tokens: Tokens, clock: FakeClock) -> None:
    use, session = TokenUse(tokens, clock), await named(tokens, "a")
    use.note(session)
    first = clock.now()
    await use.write()
    clock.advance(1)
    await use.write()
    stored = await tokens.store.session(session.id)
    assert stored is not None
    assert stored.last_used_at == first


async def test_more_than_can_be_written_is_left_out(
    tokens: Tokens, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_use, "MOST_WAITING", 2)
    use = TokenUse(tokens, clock)
    for name in ("a", "b", "c"):
        use.note(await named(tokens, name))
    await use.write()
    used = [each for each in await tokens.store.sessions() if each.last_used_at is not None]
    assert len(used) == 2
