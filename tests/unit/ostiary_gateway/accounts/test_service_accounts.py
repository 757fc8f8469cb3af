"""Service accounts: created once, listed in pages, and gone with all their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from ostiary.core.account_names import AccountName
from ostiary.errors import LoginRefused, ProviderError
from ostiary_gateway.accounts.errors import AccountConflict, AccountRefusal, NotPossible, UnknownAccount
from ostiary_gateway.accounts.service_accounts import KIND, PROVIDER, AccountState, ServiceAccounts
from ostiary_gateway.config.accounts import DeclaredAccount, ServiceAccountSettings
from ostiary_gateway.interfaces.token_store import Revocation, SessionKind
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

DEPLOYER = AccountName("shop", "deployer")
HOUR = timedelta(hours=1)


class Store(MemoryTokenStore):
    """Can fail to write a revocation, and waits before it adds a session as long as `gate` is shut."""

    fails = False

    def __init__(self, *, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.reached, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def add(self, session: Any, tokens: Any) -> None:
        self.reached.set()
        await self.gate.wait()
        await super().add(session, tokens)

    async def revoke(self, revocation: Revocation) -> int:
        if self.fails:
            raise ProviderError("the token store cannot be used", code="token-store-unavailable")
        return await super().revoke(revocation)


class WithoutObjects(MemoryTokenStore):
    put_object = None  # type: ignore[assignment]


@pytest.fixture
async def store(clock: FakeClock) -> AsyncIterator[Store]:
    store = Store(clock=clock)
    yield store
    await store.close()


def accounts_in(store: MemoryTokenStore, clock: FakeClock, *declared: str, **settings: Any) -> ServiceAccounts:
    named = tuple(DeclaredAccount(namespace=text.split("/")[0], name=text.split("/")[1]) for text in declared)
    return ServiceAccounts(Tokens(store, clock=clock), ServiceAccountSettings(declared=named, **settings), clock=clock)


async def test_an_account_is_found_as_it_was_created(store: Store, clock: FakeClock) -> None:
    accounts = accounts_in(store, clock)
    created = await accounts.create(DEPLOYER, description="rolls out", by="alice")
    assert await accounts.get(DEPLOYER) == created
    assert (created.state, created.description, created.created_by) == (AccountState.ACTIVE, "rolls out", "alice")
    assert created.created_at == clock.now()
    assert not created.is_declared


async def test_the_same_name_twice_is_a_conflict(store: Store, clock: FakeClock) -> None:
    accounts = accounts_in(store, clock, "shop/declared")
    results = await asyncio.gather(*(accounts.create(DEPLOYER) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(result, AccountConflict) for result in results) == 4
    with pytest.raises(AccountConflict, match="declared in the configuration"):
        await accounts.create(AccountName("shop", "declared"))


async def test_a_token_of_an_account_names_it_and_nothing_else(store: Store, clock: FakeClock) -> None:
    accounts = accounts_in(store, clock)
    await accounts.create(DEPLOYER)
    issued = await accounts.issue(DEPLOYER, client="requested by alice")
    assert issued.session.user.username == "ostiary:serviceaccount:shop:deployer"
    assert issued.session.user.groups == ("ostiary:serviceaccounts", "ostiary:serviceaccounts:shop")
    assert (issued.session.provider, issued.session.kind) == (PROVIDER, SessionKind.EXCHANGE)
    assert issued.expires_at == clock.now() + HOUR
    entry = await Tokens(store, clock=clock).find(issued.token.reveal())
    assert entry is not None
    clock.advance(3600)
    assert await Tokens(store, clock=clock).find(issued.token.reveal()) is None


async def test_a_lifetime_is_taken_as_asked_or_refused(store: Store, clock: FakeClock) -> None:
    accounts = accounts_in(store, clock, lifetime=HOUR, longest_lifetime=2 * HOUR)
    await accounts.create(DEPLOYER)
    assert (await accounts.issue(DEPLOYER, lifetime=2 * HOUR)).expires_at == clock.now() + 2 * HOUR
    with pytest.raises(NotPossible, match="2h at most"):
        await accounts.issue(DEPLOYER, lifetime=2 * HOUR + timedelta(seconds=1))
    with pytest.raises(NotPossible, match="at least a second"):
        await accounts.issue(DEPLOYER, lifetime=timedelta(0))


async def test_nobody_gets_a_token_of_an_unknown_account(store: Store, clock: FakeClock) -> None:
    with pytest.raises(UnknownAccount):
        await accounts_in(store, clock).issue(DEPLOYER)


async def test_deleting_an_account_ends_all_its_tokens_and_no_others(store: Store, clock: FakeClock) -> None:
    accounts, tokens = accounts_in(store, clock), Tokens(store, clock=clock)
    other = AccountName("shop", "deployer.other")
    await accounts.create(DEPLOYER)
    await accounts.create(other)
    ended = [await accounts.issue(DEPLOYER) for _ in range(3)]
    kept = await accounts.issue(other)
    assert await accounts.delete(DEPLOYER, by="alice") == 3
    assert [await tokens.find(each.token.reveal()) for each in ended] == [None] * 3
    assert await tokens.find(kept.token.reveal()) is not None
    assert await accounts.find(DEPLOYER) is None
    with pytest.raises(UnknownAccount):
        await accounts.delete(DEPLOYER)


async def test_an_account_of_the_same_name_does_not_get_the_old_tokens_back(store: Store, clock: FakeClock) -> None:
    accounts, tokens = accounts_in(store, clock), Tokens(store, clock=clock)
    await accounts.create(DEPLOYER)
    old = await accounts.issue(DEPLOYER)
    await accounts.delete(DEPLOYER)
    await accounts.create(DEPLOYER)
    assert await tokens.find(old.token.reveal()) is None
    assert await tokens.find((await accounts.issue(DEPLOYER)).token.reveal()) is not None


async def test_disabling_ends_the_tokens_and_enabling_brings_none_back(store: Store, clock: FakeClock) -> None:
    accounts, tokens = accounts_in(store, clock), Tokens(store, clock=clock)
    await accounts.create(DEPLOYER)
    issued = await accounts.issue(DEPLOYER)
    await accounts.set_state(DEPLOYER, AccountState.DISABLED, by="alice")
    assert await tokens.find(issued.token.reveal()) is None
    with pytest.raises(NotPossible, match="disabled"):
        await accounts.issue(DEPLOYER)
    await accounts.set_state(DEPLOYER, AccountState.ACTIVE, by="alice")
    assert await tokens.find(issued.token.reveal()) is None
    assert await tokens.find((await accounts.issue(DEPLOYER)).token.reveal()) is not None


async def test_a_token_that_is_issued_while_its_account_is_deleted_is_never_good(
    store: Store, clock: FakeClock
) -> None:
    accounts, tokens = accounts_in(store, clock), Tokens(store, clock=clock)
    await accounts.create(DEPLOYER)
    store.gate.clear()
    store.reached.clear()
    issuing = asyncio.create_task(accounts.issue(DEPLOYER))
    await store.reached.wait()
    await accounts.delete(DEPLOYER)
    store.gate.set()
    with pytest.raises(LoginRefused):
        await issuing
    assert await store.sessions(username=DEPLOYER.username) == []
    assert await tokens.store.count() == 0


async def test_a_delete_that_was_interrupted_can_be_finished(store: Store, clock: FakeClock) -> None:
    accounts = accounts_in(store, clock)
    await accounts.create(DEPLOYER)
    issued = await accounts.issue(DEPLOYER)
    store.fails = True
    with pytest.raises(ProviderError):
        await accounts.delete(DEPLOYER)
    # It is there, so that somebody can finish it; it gets no tokens, and nobody can enable it again.
    assert (await accounts.get(DEPLOYER)).state is AccountState.DELETING
    with pytest.raises(NotPossible, match="deleting"):
        await accounts.issue(DEPLOYER)
    with pytest.raises(AccountConflict, match="being deleted"):
        await accounts.set_state(DEPLOYER, AccountState.ACTIVE)
    store.fails = False
    assert await accounts.delete(DEPLOYER) == 1
    assert await Tokens(store, clock=clock).find(issued.token.reveal()) is None


async def test_a_thousand_accounts_are_listed_in_pages(store: Store, clock: FakeClock) -> None:
    accounts = accounts_in(store, clock, "shop/a-declared", "shop/zz-declared", "other/declared")
    names = [AccountName(namespace, f"a{number:04}") for namespace in ("shop", "shop-2") for number in range(500)]
    for name in names:
        await accounts.create(name)
    every = sorted([*(str(name) for name in names), "shop/a-declared", "shop/zz-declared", "other/declared"])
    for limit in (1000, 499, 251, 7):
        assert await listed(accounts, "", limit) == every
    of_shop = [name for name in every if name.startswith("shop/")]
    for limit in (1000, 501, 502, 503, 100):
        assert await listed(accounts, "shop", limit) == of_shop
    assert await listed(accounts, "sho", 10) == []


async def listed(accounts: ServiceAccounts, namespace: str, limit: int) -> list[str]:
    names: list[str] = []
    after = ""
    while True:
        page = await accounts.list(namespace, after=after, limit=limit)
        assert len(page.accounts) <= limit
        names += [str(account.name) for account in page.accounts]
        after = page.after
        if not after:
            return names


async def test_a_declared_account_is_there_and_changed_in_the_configuration_only(
    store: Store, clock: FakeClock
) -> None:
    accounts = accounts_in(store, clock, "shop/deployer")
    assert (await accounts.get(DEPLOYER)).is_declared
    assert (await accounts.issue(DEPLOYER)).session.user.username == DEPLOYER.username
    for change in (accounts.delete(DEPLOYER), accounts.set_state(DEPLOYER, AccountState.DISABLED)):
        with pytest.raises(NotPossible, match="declared in the configuration"):
            await change


async def test_without_objects_only_declared_accounts_are_there(clock: FakeClock) -> None:
    accounts = accounts_in(WithoutObjects(clock=clock), clock, "shop/deployer")
    assert [str(each.name) for each in (await accounts.list()).accounts] == ["shop/deployer"]
    assert await accounts.find(AccountName("shop", "other")) is None
    assert (await accounts.issue(DEPLOYER)).token
    with pytest.raises(AccountRefusal, match=r"serviceAccounts\.declared"):
        await accounts.create(AccountName("shop", "other"))


async def test_an_account_that_is_no_longer_declared_loses_its_tokens(store: Store, clock: FakeClock) -> None:
    before, tokens = accounts_in(store, clock, "shop/deployer", "shop/kept"), Tokens(store, clock=clock)
    gone = await before.issue(DEPLOYER)
    kept = await before.issue(AccountName("shop", "kept"))
    after = accounts_in(store, clock, "shop/kept")
    declared = [DeclaredAccount(namespace="shop", name=name) for name in ("deployer", "kept")]
    await after.end_removed(declared, by="ostiary")
    assert await tokens.find(gone.token.reveal()) is None
    assert await tokens.find(kept.token.reveal()) is not None


async def test_an_account_that_cannot_be_read_is_an_outage_and_not_a_guess(store: Store, clock: FakeClock) -> None:
    await store.put_object(KIND, str(DEPLOYER), b'{"state": "admin"}', version=0)
    with pytest.raises(ProviderError, match="cannot be read"):
        await accounts_in(store, clock).issue(DEPLOYER)


async def test_an_account_takes_over_no_token_of_one_that_the_configuration_declared_before(
    store: Store, clock: FakeClock
) -> None:
    """The configuration was changed while no gateway ran, so that nobody has revoked them."""
    old = await accounts_in(store, clock, "shop/deployer").issue(DEPLOYER)
    await accounts_in(store, clock).create(DEPLOYER)
    assert await Tokens(store, clock=clock).find(old.token.reveal()) is None


async def test_many_new_accounts_write_no_revocations(store: Store, clock: FakeClock) -> None:
    accounts = accounts_in(store, clock)
    for number in range(3):
        await accounts.create(AccountName("shop", f"a{number}"))
    assert await store.marks() == []


async def test_a_store_that_is_full_is_told_and_is_no_outage(store: Store, clock: FakeClock) -> None:
    async def full(*_: object, **__: object) -> int:
        raise ProviderError("too many objects", code="token-store-full")

    store.put_object = full  # type: ignore[method-assign]
    with pytest.raises(NotPossible, match="delete some"):
        await accounts_in(store, clock).create(DEPLOYER)
