"""API tokens: made by somebody who has signed in, named, bounded, and revocable by their owner alone."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from ostiary.core.account_names import AccountName
from ostiary.model import UserInfo
from ostiary_gateway.accounts.api_tokens import MOST_PER_OWNER, ApiTokens, maker_of, scope_of
from ostiary_gateway.accounts.errors import AccountConflict, NotAllowed, NotPossible, UnknownAccount, UnknownToken
from ostiary_gateway.accounts.service_accounts import AccountState, ServiceAccounts
from ostiary_gateway.config.accounts import ApiTokenSettings, ServiceAccountSettings
from ostiary_gateway.interfaces.token_store import RevocationKind, Session, SessionKind
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ALICE = UserInfo("alice", groups=("dev",))
DAY = timedelta(days=1)
SETTINGS = ApiTokenSettings(enabled=True)


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    return Tokens(MemoryTokenStore(clock=clock), clock=clock)


@pytest.fixture
def api_tokens(tokens: Tokens) -> ApiTokens:
    return ApiTokens(tokens, SETTINGS, is_checked=lambda provider: provider == "ldap")


async def signed_in(tokens: Tokens, user: UserInfo = ALICE, provider: str = "ldap") -> Session:
    return (await tokens.issue(user, provider=provider, sources=(("dev", "ldap"),))).session


async def test_a_token_is_its_owner_under_a_name(tokens: Tokens, api_tokens: ApiTokens, clock: FakeClock) -> None:
    issued = await api_tokens.create(await signed_in(tokens), " backup job ", scope="get pods -n shop", client="page")
    session = issued.session
    assert (session.kind, session.name, session.user) == (SessionKind.API_TOKEN, "backup job", ALICE)
    assert (session.provider, session.sources) == ("ldap", (("dev", "ldap"),))
    assert issued.expires_at == clock.now() + timedelta(days=30)
    assert (scope_of(session), maker_of(session)) == ("get pods -n shop", "page")
    assert await tokens.find(issued.token.reveal()) is not None
    assert [each.name for each in await api_tokens.list("alice")] == ["backup job"]
    assert await api_tokens.list("bob") == []


async def test_a_client_cannot_claim_a_scope_in_its_own_description(tokens: Tokens, api_tokens: ApiTokens) -> None:
    issued = await api_tokens.create(await signed_in(tokens), "a", client="agent; scope: get pods -n shop")
    assert scope_of(issued.session) == ""


async def test_they_are_off_unless_the_operator_turns_them_on(tokens: Tokens) -> None:
    with pytest.raises(NotAllowed, match=r"apiTokens\.enabled"):
        await ApiTokens(tokens, ApiTokenSettings()).create(await signed_in(tokens), "a")


async def test_a_lifetime_beyond_the_maximum_is_refused(tokens: Tokens, api_tokens: ApiTokens) -> None:
    owner = await signed_in(tokens)
    await api_tokens.create(owner, "longest", lifetime=90 * DAY)
    with pytest.raises(NotPossible, match="2160h at most"):
        await api_tokens.create(owner, "longer", lifetime=90 * DAY + timedelta(seconds=1))


async def test_the_maximum_is_shorter_where_the_owner_cannot_be_checked_again(
    tokens: Tokens, api_tokens: ApiTokens, clock: FakeClock
) -> None:
    owner = await signed_in(tokens, provider="cookie")
    assert (await api_tokens.create(owner, "usual")).expires_at == clock.now() + 7 * DAY
    with pytest.raises(NotPossible, match="168h at most"):
        await api_tokens.create(owner, "longer", lifetime=8 * DAY)


@pytest.mark.parametrize("name", ["", " ", "a" * 101, "a\nb", "a/b", "\x1b[31m", "\ud800"])
async def test_a_name_can_be_read_and_typed(tokens: Tokens, api_tokens: ApiTokens, name: str) -> None:
    with pytest.raises(NotPossible, match="the name of an API token"):
        await api_tokens.create(await signed_in(tokens), name)


async def test_the_same_name_twice_is_a_conflict_also_at_the_same_moment(tokens: Tokens, api_tokens: ApiTokens) -> None:
    owner = await signed_in(tokens)
    made = await asyncio.gather(*(api_tokens.create(owner, "a") for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(result, AccountConflict) for result in made) == 4
    with pytest.raises(AccountConflict):
        await api_tokens.create(owner, "a")
    assert len(await api_tokens.list("alice")) == 1
    # A name is free again when its token is gone.
    await api_tokens.revoke("alice", "a", by="alice")
    await api_tokens.create(owner, "a")


async def test_one_owner_has_only_so_many(tokens: Tokens, api_tokens: ApiTokens) -> None:
    owner = await signed_in(tokens)
    for number in range(MOST_PER_OWNER):
        await api_tokens.create(owner, f"token {number}")
    with pytest.raises(NotPossible, match="revoke some first"):
        await api_tokens.create(owner, "one more")


async def test_a_program_makes_no_tokens_with_its_own(tokens: Tokens, api_tokens: ApiTokens) -> None:
    """Whoever steals a token must not be able to make one that outlives its revocation."""
    held = (await api_tokens.create(await signed_in(tokens), "held")).session
    exchanged = (await tokens.issue_token(ALICE, provider="ldap", lifetime=DAY)).session
    for session in (held, exchanged):
        with pytest.raises(NotAllowed, match="signed in"):
            await api_tokens.create(session, "another")


async def test_an_owner_who_was_revoked_makes_none(tokens: Tokens, api_tokens: ApiTokens) -> None:
    owner = await signed_in(tokens)
    await tokens.revoke(RevocationKind.USER, "alice")
    with pytest.raises(NotAllowed, match="sign in again"):
        await api_tokens.create(owner, "a")


async def test_a_token_is_revoked_by_name_or_id_and_only_by_its_owner(tokens: Tokens, api_tokens: ApiTokens) -> None:
    owner = await signed_in(tokens)
    first, second = await api_tokens.create(owner, "first"), await api_tokens.create(owner, "second")
    for who, what in (("bob", "first"), ("bob", first.session.id), ("alice", "third"), ("alice", owner.id)):
        with pytest.raises(UnknownToken):
            await api_tokens.revoke(who, what, by=who)
    await api_tokens.revoke("alice", "first", by="alice")
    await api_tokens.revoke("alice", second.session.id, by="alice")
    assert [await tokens.find(each.token.reveal()) for each in (first, second)] == [None, None]
    assert await tokens.store.session(owner.id) is not None


async def test_a_machine_token_stands_for_its_account_and_is_made_by_a_person(
    tokens: Tokens, api_tokens: ApiTokens, clock: FakeClock
) -> None:
    accounts = ServiceAccounts(tokens, ServiceAccountSettings(), clock=clock)
    name = AccountName("shop", "reporter")
    maker = await signed_in(tokens)
    with pytest.raises(UnknownAccount):
        await api_tokens.create_for_account(maker, accounts, name, "metrics")
    await accounts.create(name)
    issued = await api_tokens.create_for_account(maker, accounts, name, "metrics", lifetime=90 * DAY)
    assert (issued.session.user.username, issued.session.name) == (name.username, "metrics")
    assert issued.session.user.groups == name.groups
    assert [each.name for each in await api_tokens.list(name.username)] == ["metrics"]
    assert await api_tokens.list("alice") == []
    with pytest.raises(NotAllowed, match="signed in"):
        await api_tokens.create_for_account(issued.session, accounts, name, "another")
    await accounts.set_state(name, AccountState.DISABLED)
    assert await tokens.find(issued.token.reveal()) is None
    with pytest.raises(NotPossible, match="disabled"):
        await api_tokens.create_for_account(maker, accounts, name, "later")
