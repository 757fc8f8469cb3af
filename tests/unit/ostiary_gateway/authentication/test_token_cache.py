"""What is kept of tokens in use, and what ends with them."""

from __future__ import annotations

import gc
from dataclasses import replace
from datetime import timedelta

import pytest

from ostiary.core.scopes import narrow, parse_scope
from ostiary.model import UserInfo
from ostiary.wire.status import Answer
from ostiary_gateway.authentication import token_cache as tokens_in_use
from ostiary_gateway.authentication.token_cache import CachedToken, TokenCache
from ostiary_gateway.interfaces.token_store import Found
from ostiary_gateway.sessions import Tokens, digest
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ANN, BOB = UserInfo("ann", groups=("dev",)), UserInfo("bob")


class Stream:
    cuts = 0

    def cut(self) -> None:
        self.cuts += 1


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    return Tokens(MemoryTokenStore(clock=clock), clock=clock)


@pytest.fixture
def in_use() -> TokenCache:
    return TokenCache()


async def stored(tokens: Tokens, user: UserInfo = ANN) -> Found:
    issued = await tokens.issue(user, provider="staff")
    found = await tokens.find_digest(digest(issued.token.reveal()))
    assert found is not None
    return found


async def remembered(in_use: TokenCache, tokens: Tokens, user: UserInfo = ANN) -> CachedToken:
    return in_use.remember(await stored(tokens, user))


async def test_a_token_that_is_looked_up_twice_is_one_object(in_use: TokenCache, tokens: Tokens) -> None:
    found = await stored(tokens)
    assert in_use.remember(found) is in_use.remember(found)
    assert len(in_use) == 1


async def test_a_token_whose_delegation_differs_is_another_token(in_use: TokenCache, tokens: Tokens) -> None:
    found = await stored(tokens)
    token = in_use.remember(found)
    assert token.delegation == ""
    narrower = in_use.remember(replace(found, token=replace(found.token, delegation="less")))
    assert narrower is not token
    assert narrower.delegation == "less"
    assert in_use.by_digest.get(found.token.digest) is narrower


async def test_a_revoked_token_is_not_taken_for_the_one_that_the_store_finds(
    in_use: TokenCache, tokens: Tokens
) -> None:
    found = await stored(tokens)
    token = in_use.remember(found)
    in_use.end(token)
    again = in_use.remember(found)
    assert again is not token
    assert not again.revoked


async def test_all_tokens_of_a_user_share_one_user_which_is_gone_with_the_last(
    in_use: TokenCache, tokens: Tokens
) -> None:
    first, second = await remembered(in_use, tokens), await remembered(in_use, tokens)
    other = await remembered(in_use, tokens, BOB)
    assert first.known_user is second.known_user
    assert first.known_user is not other.known_user
    assert first.user == ANN
    for token in (first, second):
        in_use.forget(token)
    del first, second, token
    gc.collect()
    assert len(in_use._users) == 1


async def test_a_token_ends_with_its_session_if_that_ends_first(in_use: TokenCache, tokens: Tokens) -> None:
    token = await remembered(in_use, tokens)
    assert token.expires_at <= token.session.expires_at


async def test_a_users_tokens_evict_only_their_own(tokens: Tokens) -> None:
    in_use = TokenCache(size_per_user=5000)
    bobs = await remembered(in_use, tokens, BOB)
    for _ in range(20):
        last = await remembered(in_use, tokens, ANN)
    assert in_use.by_digest.get(bobs.digest) is bobs
    assert in_use.by_digest.get(last.digest) is last
    assert len(in_use) < 5


async def test_what_ends_cuts_its_streams_once_and_is_good_for_nothing(in_use: TokenCache, tokens: Tokens) -> None:
    token, first, second = await remembered(in_use, tokens), Stream(), Stream()
    for stream in (first, second):
        in_use.add_stream(token, stream)
    token.review_answers["question"] = Answer(200, b"yes")
    assert in_use.open_streams == 2
    assert in_use.end(token) == 2
    assert (first.cuts, second.cuts) == (1, 1)
    assert (token.revoked, token.review_answers, in_use.open_streams) == (True, {}, 0)
    assert in_use.end(token) == 0


async def test_a_stream_that_is_over_is_not_cut(in_use: TokenCache, tokens: Tokens) -> None:
    token, over, open_ = await remembered(in_use, tokens), Stream(), Stream()
    in_use.add_stream(token, over)
    in_use.add_stream(token, open_)
    in_use.remove_stream(token, over)
    in_use.end(token)
    assert (over.cuts, open_.cuts) == (0, 1)


async def test_a_forgotten_token_is_still_there_while_it_has_a_stream(in_use: TokenCache, tokens: Tokens) -> None:
    token, stream = await remembered(in_use, tokens), Stream()
    in_use.add_stream(token, stream)
    in_use.forget(token)
    assert (len(in_use), in_use.every()) == (0, {token})
    in_use.remove_stream(token, stream)
    assert in_use.every() == set()


async def test_an_expired_token_is_forgotten_and_its_stream_lasts_as_long_as_the_session(
    in_use: TokenCache, tokens: Tokens
) -> None:
    token, stream = await remembered(in_use, tokens), Stream()
    in_use.add_stream(token, stream)
    in_use.expire(token.expires_at - timedelta(seconds=1))
    assert len(in_use) == 1
    in_use.expire(token.expires_at)
    assert (len(in_use), stream.cuts) == (0, 0)
    in_use.expire(token.session.expires_at)
    assert stream.cuts == 1


async def test_expired_tokens_are_forgotten_a_few_at_a_time(
    in_use: TokenCache, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for thousands to be looked at. A token that has expired is not recalled meanwhile."""
    monkeypatch.setattr(tokens_in_use, "MOST_AT_ONCE", 10)
    kept = [await remembered(in_use, tokens) for _ in range(25)]
    late = max(token.expires_at for token in kept)
    left = []
    for _ in range(3):
        in_use.expire(late)
        left.append(len(in_use))
    assert left == [15, 5, 0]
    # Those that come meanwhile have their turn, too, and those that go are none.
    later = [await remembered(in_use, tokens) for _ in range(12)]
    in_use.expire(later[0].expires_at - timedelta(seconds=1))
    in_use.forget(later[0])
    later.append(await remembered(in_use, tokens))
    late = max(token.expires_at for token in later)
    for _ in range(3):
        in_use.expire(late)
    assert len(in_use) == 0


async def test_the_streams_of_a_narrowed_token_end_with_the_token(in_use: TokenCache, tokens: Tokens) -> None:
    """Whoever was given ten minutes does not watch for a day."""
    issued = await tokens.issue(ANN, provider="staff")
    delegation = narrow(None, parse_scope("watch pods -n shop")).encode()
    minted = await tokens.mint(issued.session, lifetime=timedelta(minutes=10), delegation=delegation)
    stored = await tokens.find(minted.token.reveal())
    assert stored is not None
    token, stream = in_use.remember(stored), Stream()
    in_use.add_stream(token, stream)
    in_use.expire(minted.expires_at - timedelta(seconds=1))
    assert stream.cuts == 0
    in_use.expire(minted.expires_at)
    assert stream.cuts == 1


async def test_what_is_kept_for_the_owner_is_kept_apart_from_a_narrowed_token(
    in_use: TokenCache, tokens: Tokens
) -> None:
    owner = await remembered(in_use, tokens)
    users = [owner.known_user]
    for scope in ("get pods -n shop", "get pods -n web"):
        delegation = narrow(None, parse_scope(scope))
        minted = await tokens.mint(owner.session, lifetime=timedelta(minutes=10), delegation=delegation.encode())
        stored = await tokens.find(minted.token.reveal())
        assert stored is not None
        token = in_use.remember(stored)
        assert token.known_user.delegation == delegation
        users.append(token.known_user)
    assert owner.known_user.delegation is None
    assert len(set(users)) == 3


async def test_a_follower_is_cut_with_the_token_though_the_token_is_forgotten(
    in_use: TokenCache, tokens: Tokens
) -> None:
    token, first, second = in_use.remember(await stored(tokens)), Stream(), Stream()
    in_use.follow(token, first)
    in_use.follow(token, second)
    in_use.unfollow(token, second)
    in_use.forget(token)
    assert token in in_use.every()
    # A follower is no open stream.
    assert (in_use.open_streams, in_use.end(token)) == (0, 0)
    assert (first.cuts, second.cuts) == (1, 0)
    assert token not in in_use.every()
    in_use.unfollow(token, first)
