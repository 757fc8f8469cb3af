"""Tokens of web applications: each for one application, and no longer than its session."""

from __future__ import annotations

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, TokenKind
from ostiary_gateway.sessions import (
    APPLICATION_PREFIX,
    ApplicationTokens,
    Tokens,
    application_digest,
    digest,
    keeping_secret,
    unseal_kept,
    well_formed,
)
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ANN = UserInfo("ann", groups=("dev",))


class BrokenStore(MemoryTokenStore):
    """Cannot write revocations down."""

    async def revoke(self, revocation: Revocation) -> int:
        raise ProviderError("the token store cannot be used")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    return Tokens(MemoryTokenStore(clock=clock), clock=clock)


async def test_a_token_is_known_for_its_application_alone_and_is_no_other_kind(
    tokens: Tokens, clock: FakeClock
) -> None:
    applications = ApplicationTokens(tokens, clock)
    browser = await tokens.issue_browser(ANN, provider="staff")
    session, token = await applications.issue(browser.session.id, "wiki")
    text = token.reveal()
    assert well_formed(text.encode(), APPLICATION_PREFIX)
    entry = await applications.find(application_digest(text, "wiki"))
    assert entry is not None
    assert (entry.session, entry.token.kind) == (session, TokenKind.APPLICATION)
    assert entry.token.expires_at == session.expires_at
    assert await applications.find(application_digest(text, "board")) is None
    assert await applications.find(digest(text)) is None
    assert await tokens.find(text) is None
    assert await tokens.find_digest(application_digest(text, "wiki")) is None
    assert await tokens.find_browser(text) is None
    assert await applications.find(digest(browser.secret.reveal())) is None


async def test_the_session_ends_its_tokens(tokens: Tokens, clock: FakeClock) -> None:
    applications = ApplicationTokens(tokens, clock)
    browser = await tokens.issue_browser(ANN, provider="staff")
    _, token = await applications.issue(browser.session.id, "wiki")
    await tokens.revoke(RevocationKind.SESSION, browser.session.id)
    assert await applications.find(application_digest(token.reveal(), "wiki")) is None
    with pytest.raises(LoginRefused):
        await applications.issue(browser.session.id, "wiki")


async def test_a_revocation_that_is_not_written_down_yet_counts(clock: FakeClock) -> None:
    tokens = Tokens(BrokenStore(clock=clock), clock=clock)
    applications = ApplicationTokens(tokens, clock)
    browser = await tokens.issue_browser(ANN, provider="staff")
    _, token = await applications.issue(browser.session.id, "wiki")
    with pytest.raises(ProviderError):
        await tokens.revoke(RevocationKind.USER, "ann")
    assert await applications.find(application_digest(token.reveal(), "wiki")) is None
    with pytest.raises(LoginRefused):
        await applications.issue(browser.session.id, "wiki")


async def test_what_is_kept_for_a_session_opens_with_a_secret_that_opens_no_page(tokens: Tokens) -> None:
    browser = await tokens.issue_browser(ANN, provider="staff", kept=Secret("refresh"))
    keeping = keeping_secret(browser.secret)
    kept = unseal_kept(browser.session, keeping.reveal())
    assert kept is not None
    assert kept.reveal() == "refresh"
    assert unseal_kept(browser.session, browser.secret.reveal()) is None
    assert await tokens.find_browser(keeping.reveal()) is None
