"""The life of tokens, from sign-in to the end of the session."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import RevocationKind, Session, TokenKind
from ostiary_gateway.sessions import (
    RENEWAL_PREFIX,
    REUSE_LEEWAY,
    Attested,
    Issued,
    Tokens,
    digest,
    digest_hex,
    new_token,
)
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ANN = UserInfo("ann", "u-1", ("dev", "ops"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    return Tokens(MemoryTokenStore(clock=clock), clock=clock)


async def same(session: Session) -> Attested:
    return Attested(session.user, session.sources)


async def signed_in(tokens: Tokens) -> Issued:
    return await tokens.issue(ANN, provider="staff", sources=(("dev", "file"),), client="kubectl")


# --- issue and find ---


async def test_an_issued_token_leads_to_its_user(tokens: Tokens, clock: FakeClock) -> None:
    """S8, S22."""
    issued = await signed_in(tokens)
    for form in (issued.token.reveal(), issued.token.reveal().encode()):
        found = await tokens.find(form)
        assert found is not None
        assert found.session == issued.session
    assert issued.session.user == ANN
    assert issued.session.sources == (("dev", "file"),)
    assert issued.expires_at == clock.now() + timedelta(minutes=15)
    assert issued.session.expires_at == clock.now() + timedelta(hours=24)


async def test_the_store_never_sees_a_token(clock: FakeClock) -> None:
    """S23, C3."""
    store = MemoryTokenStore(clock=clock)
    issued = await signed_in(Tokens(store, clock=clock))
    kept = repr(vars(store)) + repr(issued)
    for token in (issued.token, issued.renewal):
        assert token.reveal() not in kept
        assert token.reveal()[4:20] not in kept
        assert await store.find(digest(token.reveal())) is not None


async def test_unknown_expired_revoked_and_mistyped_tokens_are_all_the_same(tokens: Tokens, clock: FakeClock) -> None:
    """S24, S39."""
    expired, revoked = await signed_in(tokens), await signed_in(tokens)
    await tokens.revoke(RevocationKind.TOKEN, digest_hex(revoked.token.reveal()))
    clock.advance(minutes=15)
    for token in (expired.token, revoked.token, new_token(), new_token(RENEWAL_PREFIX)):
        assert await tokens.find(token.reveal()) is None
    for text in ("", "ost_", expired.token.reveal()[:-1], "\ud800", "é" * 55):
        assert await tokens.find(text) is None


async def test_a_renewal_token_opens_no_door(tokens: Tokens) -> None:
    issued = await signed_in(tokens)
    assert await tokens.find(issued.renewal.reveal()) is None


async def test_an_access_token_never_outlives_its_session(clock: FakeClock) -> None:
    """C1."""
    store, lifetime = MemoryTokenStore(clock=clock), timedelta(minutes=15)
    tokens = Tokens(store, clock=clock, lifetime=lifetime, session_lifetime=timedelta(minutes=20))
    issued = await signed_in(tokens)
    clock.advance(minutes=10)
    renewed = await tokens.renew(issued.renewal.reveal(), same)
    assert renewed.expires_at == renewed.session.expires_at == issued.session.expires_at
    clock.advance(minutes=10)
    assert await tokens.find(renewed.token.reveal()) is None
    with pytest.raises(LoginRefused):
        await tokens.renew(renewed.renewal.reveal(), same)
    assert await tokens.sweep() == 4


@pytest.mark.parametrize("name", ["\ud800", "a\0b"])
async def test_what_is_no_text_becomes_no_token(tokens: Tokens, name: str) -> None:
    """S14."""
    for user in (UserInfo(name), UserInfo("ann", groups=(name,)), UserInfo("ann", extra=(("k", (name,)),))):
        with pytest.raises(ProviderError) as caught:
            await tokens.issue(user, provider="staff")
        assert caught.value.code == "provider-failed"
    assert await tokens.store.count() == 0


# --- renewal ---


async def test_a_renewal_gives_a_new_pair_under_the_same_session(tokens: Tokens, clock: FakeClock) -> None:
    """C1."""
    issued = await signed_in(tokens)
    clock.advance(minutes=14)
    renewed = await tokens.renew(issued.renewal.reveal(), same)
    assert renewed.session == issued.session
    assert {renewed.token, renewed.renewal}.isdisjoint({issued.token, issued.renewal})
    assert renewed.expires_at == clock.now() + timedelta(minutes=15)
    clock.advance(minutes=2)
    assert await tokens.find(issued.token.reveal()) is None
    assert await tokens.find(renewed.token.reveal()) is not None
    assert await tokens.renew(renewed.renewal.reveal().encode(), same)


async def test_a_person_signs_in_once_a_day(tokens: Tokens, clock: FakeClock) -> None:
    """C1, S64: a session of a day on tokens of minutes."""
    current = await signed_in(tokens)
    for _ in range(143):
        clock.advance(minutes=10)
        current = await tokens.renew(current.renewal.reveal(), same)
        assert await tokens.find(current.token.reveal()) is not None
    clock.advance(minutes=10)
    with pytest.raises(LoginRefused):
        await tokens.renew(current.renewal.reveal(), same)


async def test_groups_are_those_of_the_latest_renewal(tokens: Tokens) -> None:
    """S36, S64, T3: what was taken away is gone, also from the tokens issued before; what was given is there."""
    issued = await signed_in(tokens)

    async def moved(session: Session) -> Attested:
        return Attested(replace(session.user, groups=("ops", "night")), (("night", "file"),))

    renewed = await tokens.renew(issued.renewal.reveal(), moved)
    found = await tokens.find(renewed.token.reveal())
    assert found is not None
    assert found.session.user.groups == ("ops", "night")
    assert found.session.sources == (("night", "file"),)
    assert await tokens.find(issued.token.reveal()) is None


async def test_who_is_refused_at_a_renewal_is_out(tokens: Tokens) -> None:
    """S64."""
    issued = await signed_in(tokens)

    async def gone(session: Session) -> Attested:
        raise LoginRefused("no such user")

    with pytest.raises(LoginRefused, match="no such user"):
        await tokens.renew(issued.renewal.reveal(), gone)
    assert await tokens.find(issued.token.reveal()) is None
    assert await tokens.store.sessions() == []


async def test_a_session_does_not_change_hands(tokens: Tokens) -> None:
    issued = await signed_in(tokens)

    async def another(session: Session) -> Attested:
        return Attested(UserInfo("root"))

    with pytest.raises(LoginRefused):
        await tokens.renew(issued.renewal.reveal(), another)
    assert await tokens.store.sessions() == []


async def test_after_an_outage_the_renewal_token_is_still_good(tokens: Tokens) -> None:
    issued = await signed_in(tokens)

    async def outage(session: Session) -> Attested:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await tokens.renew(issued.renewal.reveal(), outage)
    assert await tokens.find(issued.token.reveal()) is not None
    assert await tokens.renew(issued.renewal.reveal(), same)


async def test_a_renewal_token_that_is_used_again_ends_the_session(tokens: Tokens, clock: FakeClock) -> None:
    issued = await signed_in(tokens)
    renewed = await tokens.renew(issued.renewal.reveal(), same)
    clock.advance(REUSE_LEEWAY.total_seconds() + 0.001)
    with pytest.raises(LoginRefused):
        await tokens.renew(issued.renewal.reveal(), same)
    assert await tokens.find(renewed.token.reveal()) is None
    with pytest.raises(LoginRefused):
        await tokens.renew(renewed.renewal.reveal(), same)


async def test_two_programs_that_renew_at_the_same_moment_do_not_end_the_session(
    tokens: Tokens, clock: FakeClock
) -> None:
    issued = await signed_in(tokens)
    attempts = [tokens.renew(issued.renewal.reveal(), same) for _ in range(5)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    (won,) = [outcome for outcome in outcomes if isinstance(outcome, Issued)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, LoginRefused)]
    assert [refusal.retry_after for refusal in refused] == [1.0] * 4, "the session goes on, and they are told so"
    clock.advance(REUSE_LEEWAY.total_seconds())
    with pytest.raises(LoginRefused):
        await tokens.renew(issued.renewal.reveal(), same)
    assert await tokens.find(won.token.reveal()) is not None


async def test_a_revocation_beats_a_renewal_that_is_under_way(tokens: Tokens, clock: FakeClock) -> None:
    """T3."""
    issued = await signed_in(tokens)

    async def revoked_meanwhile(session: Session) -> Attested:
        await tokens.revoke(RevocationKind.USER, "ann")
        clock.advance(1)
        return Attested(session.user)

    with pytest.raises(LoginRefused):
        await tokens.renew(issued.renewal.reveal(), revoked_meanwhile)
    assert await tokens.store.count() == 0


async def test_the_refusals_of_a_renewal_read_the_same(tokens: Tokens, clock: FakeClock) -> None:
    """S39."""
    issued = await signed_in(tokens)
    await tokens.renew(issued.renewal.reveal(), same)
    said = set()
    browser = await tokens.issue_browser(UserInfo("ann"), provider="staff")
    clock.advance(REUSE_LEEWAY.total_seconds() + 1)
    spent, unknown = issued.renewal.reveal(), new_token(RENEWAL_PREFIX).reveal()
    for text in (issued.token.reveal(), spent, unknown, browser.secret.reveal(), "x"):
        with pytest.raises(LoginRefused) as caught:
            await tokens.renew(text, same)
        said.add(caught.value.summary)
        assert text[4:20] not in str(caught.value) or len(text) < 4
    assert len(said) == 1


async def test_what_a_browser_keeps_is_no_token(tokens: Tokens) -> None:
    """L4: it is found as what it is, and as nothing else."""
    begun = await tokens.issue_browser(UserInfo("ann"), provider="staff", client="Chrome")
    secret = begun.secret.reveal()
    assert secret.startswith("osb_")
    assert await tokens.find_browser(secret) == begun.session
    assert await tokens.find(secret) is None
    issued = await signed_in(tokens)
    for text in (issued.token.reveal(), issued.renewal.reveal(), "osb_", ""):
        assert await tokens.find_browser(text) is None
    assert digest_hex(secret) == digest(secret).hex()


async def test_who_was_revoked_between_signing_in_and_fetching_the_token_gets_none(
    tokens: Tokens, clock: FakeClock
) -> None:
    """T3."""
    signed_in_at = clock.now()
    clock.advance(1)
    await tokens.revoke(RevocationKind.USER, "ann")
    clock.advance(1)
    with pytest.raises(LoginRefused):
        await tokens.issue(UserInfo("ann"), provider="staff", at=signed_in_at)


async def test_tokens_are_found_by_kind_as_the_store_tells_it(tokens: Tokens) -> None:
    """A token with the prefix of an access token that the store knows as another is refused."""
    issued = await signed_in(tokens)
    store = tokens.store
    assert isinstance(store, MemoryTokenStore)
    record = store._tokens[digest(issued.token.reveal())]
    store._tokens[record.digest] = replace(record, kind=TokenKind.RENEWAL)
    assert await tokens.find(issued.token.reveal()) is None
