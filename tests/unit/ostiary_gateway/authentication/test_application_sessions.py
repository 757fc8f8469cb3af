"""The tokens of web applications at the authenticator: found once, checked again, and cut with their streams."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ostiary.model import Secret, UserInfo
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.cookies import PresentedCookie, cookie_name, presented_cookie
from ostiary_gateway.interfaces.token_store import Found, RevocationKind
from ostiary_gateway.sessions import ApplicationTokens, Tokens
from ostiary_gateway.testing import FakeClock

ALICE = UserInfo("alice", groups=("dev",))
INTERVAL = timedelta(minutes=15)


class Stream:
    def __init__(self) -> None:
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True


class Check:
    """Says who the user is today; nobody if `user` is None."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.user: UserInfo | None = ALICE
        self.calls = 0

    async def __call__(self, stored: Found, keeping: Secret | None) -> Found | None:
        self.calls += 1
        if self.user is None:
            return None
        token = replace(stored.token, expires_at=self.clock.now() + INTERVAL)
        return replace(stored, token=token, session=replace(stored.session, user=self.user))


@pytest.fixture
def check(authenticator: TokenAuthenticator, clock: FakeClock) -> Check:
    check = Check(clock)
    authenticator.check_visitor = check
    return check


@pytest.fixture
async def cookie(tokens: Tokens, clock: FakeClock) -> PresentedCookie:
    browser = await tokens.issue_browser(ALICE, provider="staff")
    _, token = await ApplicationTokens(tokens, clock).issue(browser.session.id, "wiki")
    header = f"{cookie_name('wiki', secure=True)}={token.reveal()}".encode()
    cookie = presented_cookie([(b"Cookie", header)], "wiki", secure=True)
    assert cookie is not None
    return cookie


async def test_it_is_found_once_and_checked_again_when_that_is_due(
    authenticator: TokenAuthenticator, check: Check, cookie: PresentedCookie, clock: FakeClock
) -> None:
    assert authenticator.recall(cookie.digest) is None
    token = await authenticator.find_application(cookie)
    assert token is not None
    assert authenticator.recall(cookie.digest) is token
    assert check.calls == 1
    clock.advance(minutes=15)
    assert authenticator.recall(cookie.digest) is None
    again = await authenticator.find_application(cookie)
    assert again is not None
    assert (again.user, again.is_application, check.calls) == (ALICE, True, 2)


async def test_as_an_access_token_it_is_unknown(authenticator: TokenAuthenticator, cookie: PresentedCookie) -> None:
    assert await authenticator.find(cookie.digest) is None


@pytest.mark.parametrize("user", [None, UserInfo("alice")])
async def test_a_stream_is_cut_when_its_user_is_gone_or_has_lost_a_group(
    authenticator: TokenAuthenticator, check: Check, cookie: PresentedCookie, clock: FakeClock, user: UserInfo | None
) -> None:
    token = await authenticator.find_application(cookie)
    assert token is not None
    stream = Stream()
    authenticator.in_use.add_stream(token, stream)
    clock.advance(minutes=15)
    await authenticator.check_streams()
    assert not stream.is_cut
    check.user = user
    clock.advance(minutes=15)
    await authenticator.check_streams()
    assert stream.is_cut


async def test_a_revocation_cuts_it_at_once(
    authenticator: TokenAuthenticator, tokens: Tokens, check: Check, cookie: PresentedCookie
) -> None:
    token = await authenticator.find_application(cookie)
    assert token is not None
    stream = Stream()
    authenticator.in_use.add_stream(token, stream)
    await tokens.revoke(RevocationKind.SESSION, token.session.id)
    await authenticator.feed.confirm()
    assert stream.is_cut
    assert await authenticator.find_application(cookie) is None
