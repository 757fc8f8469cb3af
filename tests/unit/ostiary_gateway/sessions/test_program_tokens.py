"""Tokens of programs and API tokens: one access token each, counted apart from sign-ins; and narrower ones."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, SessionKind, TokenKind
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ANN = UserInfo("ann", groups=("dev",))
MINUTES = timedelta(minutes=10)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    return Tokens(MemoryTokenStore(clock=clock), clock=clock)


async def test_a_program_gets_one_token_that_ends_with_its_session(tokens: Tokens, clock: FakeClock) -> None:
    issued = await tokens.issue_token(
        ANN, provider="ci", sources=(("dev", "rule"),), client="job 7", lifetime=MINUTES, delegation="less"
    )
    entry = await tokens.find(issued.token.reveal())
    assert entry is not None
    assert (entry.session, entry.token.delegation, entry.token.kind) == (issued.session, "less", TokenKind.ACCESS)
    assert (entry.session.kind, entry.session.name, entry.session.client) == (SessionKind.EXCHANGE, "", "job 7")
    assert issued.expires_at == issued.session.expires_at == entry.token.expires_at == clock.now() + MINUTES
    assert await tokens.store.count() == 1
    clock.advance(minutes=10)
    assert await tokens.find(issued.token.reveal()) is None


async def test_an_api_token_has_a_name_and_may_outlive_a_sign_in(tokens: Tokens, clock: FakeClock) -> None:
    issued = await tokens.issue_token(ANN, provider="staff", name="deploy", lifetime=timedelta(days=90))
    assert (issued.session.kind, issued.session.name) == (SessionKind.API_TOKEN, "deploy")
    clock.advance(hours=89 * 24)
    assert await tokens.find(issued.token.reveal()) is not None


async def test_exchanges_and_sign_ins_do_not_end_each_other(clock: FakeClock) -> None:
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock, sessions_per_user=2)
    first = await tokens.issue(ANN, provider="staff")
    clock.advance(1)
    programs = [await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES) for _ in range(30)]
    api_token = await tokens.issue_token(ANN, provider="staff", name="deploy", lifetime=MINUTES)
    assert await tokens.find(first.token.reveal()) is not None
    for _ in range(2):
        clock.advance(1)
        await tokens.issue(ANN, provider="staff")
    assert await tokens.find(first.token.reveal()) is None
    for issued in (*programs, api_token):
        assert await tokens.find(issued.token.reveal()) is not None


async def test_a_user_with_too_many_tokens_gets_no_more_until_some_expire(clock: FakeClock) -> None:
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock, tokens_per_user=3)
    for _ in range(3):
        await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES)
    with pytest.raises(LoginRefused) as caught:
        await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES)
    assert caught.value.summary == "this user has too many tokens"
    await tokens.issue_token(UserInfo("bob"), provider="ci", lifetime=MINUTES)
    clock.advance(minutes=10)
    await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES)


async def test_api_tokens_have_a_limit_of_their_own_and_none_is_ended_for_another(clock: FakeClock) -> None:
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock, tokens_per_user=1, api_tokens_per_user=2)
    kept = [await tokens.issue_token(ANN, provider="staff", name=name, lifetime=MINUTES) for name in ("a", "b")]
    with pytest.raises(LoginRefused):
        await tokens.issue_token(ANN, provider="staff", name="c", lifetime=MINUTES)
    await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES)
    await tokens.revoke(RevocationKind.SESSION, kept[0].session.id)
    await tokens.issue_token(ANN, provider="staff", name="c", lifetime=MINUTES)
    assert await tokens.find(kept[1].token.reveal()) is not None


async def test_the_limit_holds_within_a_hundredth_and_the_store_is_rarely_asked(clock: FakeClock) -> None:
    class CountingStore(MemoryTokenStore):
        counts = 0

        async def count_sessions(self, username: str, kind: SessionKind) -> int:
            self.counts += 1
            return await super().count_sessions(username, kind)

    store = CountingStore(clock=clock)
    tokens = Tokens(store, clock=clock, tokens_per_user=500)
    for _ in range(500):
        await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES)
    assert store.counts == 100
    with pytest.raises(LoginRefused):
        await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES)


async def test_who_was_revoked_since_the_proof_was_made_gets_no_token(tokens: Tokens, clock: FakeClock) -> None:
    sequence = await tokens.sequence()
    await tokens.store.revoke(Revocation(RevocationKind.USER, "ann"))
    with pytest.raises(LoginRefused):
        await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES, at=clock.now(), sequence=sequence)
    assert await tokens.store.count() == 0


async def test_names_that_are_no_text_become_no_token(tokens: Tokens) -> None:
    with pytest.raises(ProviderError):
        await tokens.issue_token(UserInfo("a\0b"), provider="ci", lifetime=MINUTES)


async def test_a_narrower_token_is_added_and_does_not_outlive_its_session(tokens: Tokens, clock: FakeClock) -> None:
    issued = await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES)
    clock.advance(minutes=5)
    for lifetime, minutes in ((timedelta(minutes=1), 1), (timedelta(hours=1), 5)):
        minted = await tokens.mint(issued.session, lifetime=lifetime, delegation="less")
        assert minted.expires_at == clock.now() + timedelta(minutes=minutes)
        entry = await tokens.find(minted.token.reveal())
        assert entry is not None
        assert (entry.session, entry.token.delegation) == (issued.session, "less")
    assert (await tokens.find(issued.token.reveal())) is not None
    await tokens.revoke(RevocationKind.SESSION, issued.session.id)
    assert await tokens.store.count() == 0


async def test_nothing_is_minted_under_a_session_that_has_ended(tokens: Tokens, clock: FakeClock) -> None:
    revoked = await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES)
    expired = await tokens.issue_token(ANN, provider="ci", lifetime=timedelta(minutes=1))
    await tokens.revoke(RevocationKind.SESSION, revoked.session.id)
    clock.advance(minutes=1)
    for session in (revoked.session, expired.session):
        with pytest.raises(LoginRefused):
            await tokens.mint(session, lifetime=MINUTES, delegation="")


async def test_nothing_is_minted_after_a_revocation_that_could_not_be_written_down(tokens: Tokens) -> None:
    issued = await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES)
    tokens.unsaved.add(Revocation(RevocationKind.USER, "ann"))
    with pytest.raises(LoginRefused):
        await tokens.mint(issued.session, lifetime=MINUTES, delegation="")
    assert await tokens.store.count() == 1


@pytest.mark.parametrize("lifetime", [timedelta(0), timedelta(seconds=-1)])
async def test_a_token_lives_for_some_time(tokens: Tokens, lifetime: timedelta) -> None:
    with pytest.raises(ValueError, match="longer than no time"):
        await tokens.issue_token(ANN, provider="ci", lifetime=lifetime)
    issued = await tokens.issue_token(ANN, provider="ci", lifetime=MINUTES)
    with pytest.raises(ValueError, match="longer than no time"):
        await tokens.mint(issued.session, lifetime=lifetime, delegation="")
