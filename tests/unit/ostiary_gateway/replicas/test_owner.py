"""A token store is used only while it is certain that it belongs to this gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.capabilities import ability, has_trait
from ostiary_gateway.interfaces.store_capabilities import CountStore, NoteStore, OwnedStore
from ostiary_gateway.interfaces.token_store import RecordStore, SharedBetweenProcesses, TokenStore
from ostiary_gateway.replicas import owner as owner_module
from ostiary_gateway.replicas.owner import StoreOwner, guard
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.noting_store import NotingStore

MINE, THEIRS = "https://mine.example", "https://theirs.example"


@pytest.fixture
async def store(clock: FakeClock, tmp_path: Path) -> AsyncIterator[NotingStore]:
    store = NotingStore(str(tmp_path / "tokens.db"), clock=clock)
    yield store
    await store.close()


def guarded(store: TokenStore) -> tuple[TokenStore, StoreOwner]:
    guarded_store, owner = guard(store, MINE)
    assert owner is not None
    return guarded_store, owner


async def test_the_first_use_claims_it(store: NotingStore) -> None:
    mine, owner = guarded(store)
    assert owner.trouble == "its owner is not confirmed yet"
    assert await mine.sessions() == []
    assert await store.claim(THEIRS) == MINE
    assert owner.trouble == ""


async def test_a_store_of_another_gateway_is_not_used(store: NotingStore, caplog: pytest.LogCaptureFixture) -> None:
    await store.claim(THEIRS)
    mine, owner = guarded(store)
    for _ in range(3):
        with pytest.raises(ProviderError) as caught:
            await mine.find(b"x" * 32)
        assert caught.value.code == "token-store-of-another-gateway"
        assert THEIRS in str(caught.value)
        assert "ostiary-gateway store check --take-over" in str(caught.value)
    assert "another gateway" in owner.trouble
    assert THEIRS not in owner.trouble
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [(record.__dict__["owner"], record.__dict__["external_url"]) for record in errors] == [(THEIRS, MINE)]


async def test_nothing_is_used_before_the_store_could_be_asked(store: NotingStore) -> None:
    store.away = True
    mine, owner = guarded(store)
    with pytest.raises(ProviderError) as caught:
        await mine.sessions()
    assert caught.value.code == "token-store-unavailable"
    store.away = False
    assert await mine.sessions() == []
    assert owner.trouble == ""


async def test_a_store_that_is_taken_over_is_no_longer_used(store: NotingStore) -> None:
    mine, owner = guarded(store)
    await mine.sessions()
    await store.claim(THEIRS, anew=True)
    with pytest.raises(ProviderError):
        await owner.confirm()
    with pytest.raises(ProviderError):
        await mine.sessions()
    await store.claim(MINE, anew=True)
    await owner.confirm()
    assert await mine.sessions() == []


async def test_in_the_background_it_is_asked_again_and_again(
    store: NotingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "CONFIRM_SECONDS", 0.0)
    monkeypatch.setattr(owner_module, "RETRY_SECONDS", 0.0)
    _, owner = guarded(store)
    running = asyncio.ensure_future(owner.run())

    async def until(confirmed: bool) -> None:
        async with asyncio.timeout(30):
            while owner.is_confirmed is not confirmed:
                await asyncio.sleep(0)

    await until(True)
    await store.claim(THEIRS, anew=True)
    await until(False)
    await store.claim(MINE, anew=True)
    await until(True)
    # While it is away it stays ours: revocations that cannot be confirmed shut the door anyway.
    store.away = True
    for _ in range(10):
        await asyncio.sleep(0)
    assert owner.is_confirmed
    running.cancel()


class CountingStore(NotingStore):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.claims: list[str] = []

    async def claim(self, owner: str, *, anew: bool = False) -> str:
        self.claims.append(owner)
        await asyncio.sleep(0)
        return await super().claim(owner, anew=anew)


@pytest.mark.parametrize("owner", [MINE, THEIRS])
async def test_many_callers_at_once_ask_once(tmp_path: Path, owner: str) -> None:
    store = CountingStore(str(tmp_path / "tokens.db"))
    await store.claim(owner)
    store.claims.clear()
    mine, _ = guarded(store)
    await asyncio.gather(*(mine.sessions() for _ in range(10)), return_exceptions=True)
    assert store.claims == [MINE]
    await store.close()


async def test_another_address_is_taken_only_if_the_store_is_that_one_s(store: NotingStore) -> None:
    _, owner = guarded(store)
    await owner.confirm()
    with pytest.raises(ProviderError):
        await owner.change(THEIRS)
    assert (owner.name, owner.is_confirmed) == (MINE, True)
    await store.claim(THEIRS, anew=True)
    await owner.change(THEIRS)
    assert (owner.name, owner.is_confirmed) == (THEIRS, True)


async def test_what_the_store_can_do_can_be_seen_through_the_guard(store: NotingStore) -> None:
    mine, _ = guarded(store)
    for protocol in (NoteStore, RecordStore, OwnedStore):
        assert ability(mine, protocol) is mine
    assert ability(mine, CountStore) is None
    assert has_trait(mine, SharedBetweenProcesses)


async def test_closing_needs_no_owner(store: NotingStore) -> None:
    await store.claim(THEIRS)
    mine, _ = guarded(store)
    await mine.close()


def test_a_store_without_owner_and_a_gateway_without_address_are_as_before(store: NotingStore) -> None:
    memory = MemoryTokenStore()
    assert guard(memory, MINE) == (memory, None)
    assert guard(store, "") == (store, None)
