"""Tokens in use: what is kept of them, for how long, and what a revocation does to them and their streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ostiary.core.scopes import Delegation, parse_scope
from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary.wire.status import Answer
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.interfaces.token_store import Found, Revocation, RevocationKind
from ostiary_gateway.sessions import Tokens, digest
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.authentication.signed_in_users import ANN, BOB, Store, key, sign_in, stream_of

ANSWER = Answer(200, b"{}")


# --- what is kept in memory ---


async def test_a_token_is_looked_up_in_the_store_once(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store
) -> None:
    issued = await tokens.issue(ANN, provider="staff")
    assert authenticator.recall(key(issued)) is None
    live = await authenticator.find(key(issued))
    assert live is not None
    assert (live.user, live.session, live.digest) == (ANN, issued.session, key(issued))
    assert authenticator.recall(key(issued)) is live
    assert store.lookups == 1
    assert authenticator.size == 1


async def test_an_unknown_token_is_found_by_nobody_and_takes_no_room(authenticator: TokenAuthenticator) -> None:
    assert await authenticator.find(b"x" * 32) is None
    assert authenticator.size == 0


async def test_a_token_that_is_found_twice_is_the_same_object_with_what_was_learned_about_it(
    authenticator: TokenAuthenticator, tokens: Tokens
) -> None:
    """Two requests with a new token look it up at the same time; a stream of the first is not lost by the second."""
    issued = await tokens.issue(ANN, provider="staff")
    first, second = await asyncio.gather(authenticator.find(key(issued)), authenticator.find(key(issued)))
    assert first is not None
    assert first is second


async def test_all_tokens_of_a_user_with_the_same_groups_count_as_one_user(
    authenticator: TokenAuthenticator, tokens: Tokens
) -> None:
    first, second = [await sign_in(authenticator, tokens) for _ in range(2)]
    promoted = await sign_in(authenticator, tokens, UserInfo("ann", groups=("dev", "ops")))
    assert first.known_user is second.known_user
    assert promoted.known_user is not first.known_user


async def test_a_token_is_good_until_the_second_it_expires(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock
) -> None:
    live = await sign_in(authenticator, tokens)
    clock.advance(minutes=15, seconds=-1)
    await authenticator.feed.confirm()
    assert authenticator.recall(live.digest) is live
    clock.advance(1)
    await authenticator.feed.confirm()
    assert authenticator.recall(live.digest) is None
    assert authenticator.size == 0


async def test_no_token_outlives_its_session(store: Store, clock: FakeClock) -> None:
    tokens = Tokens(store, clock=clock, lifetime=timedelta(hours=2), session_lifetime=timedelta(hours=1))
    authenticator = TokenAuthenticator(tokens, clock)
    live = await sign_in(authenticator, tokens)
    assert live.expires_at == live.session.expires_at
    clock.advance(hours=1)
    await authenticator.feed.confirm()
    assert authenticator.recall(live.digest) is None


async def test_a_user_who_takes_too_much_room_loses_only_tokens_of_their_own(tokens: Tokens, clock: FakeClock) -> None:
    authenticator = TokenAuthenticator(tokens, clock, size=100_000, size_per_user=10_000)
    mine = await sign_in(authenticator, tokens, BOB)
    many = [await sign_in(authenticator, tokens) for _ in range(20)]
    assert authenticator.recall(mine.digest) is mine
    assert authenticator.recall(many[-1].digest) is many[-1]
    assert authenticator.recall(many[0].digest) is None
    assert 2 <= authenticator.size < 10
    again = await authenticator.find(many[0].digest)
    assert again is not None, "it is looked up in the store when it comes back"
    assert again is not many[0]


async def test_a_user_in_many_groups_takes_more_room(tokens: Tokens, clock: FakeClock) -> None:
    """What is counted are bytes: names of groups, and where each of them comes from."""

    async def kept(user: UserInfo, sources: tuple[tuple[str, str], ...] = ()) -> int:
        authenticator = TokenAuthenticator(tokens, clock, size_per_user=30_000)
        for _ in range(30):
            issued = await tokens.issue(user, provider="staff", sources=sources)
            assert await authenticator.find(key(issued)) is not None
        return authenticator.size

    groups = tuple(f"team-{number:0100}" for number in range(20))
    by_name = UserInfo("ann", groups=groups)
    plain = await kept(ANN)
    assert plain > 2 * await kept(by_name) > 0
    assert await kept(by_name) > await kept(by_name, tuple((group, "the directory of the staff") for group in groups))


# --- the store: slow, down, overtaken ---


async def test_what_is_in_memory_is_good_only_as_long_as_no_revocation_can_be_missing(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store, clock: FakeClock
) -> None:
    """The promise of `tokens.maxStale`, five seconds, to the moment."""
    live = await sign_in(authenticator, tokens)
    store.down = True
    clock.advance(4.999)
    assert authenticator.recall(live.digest) is live
    clock.advance(0.001)
    assert authenticator.recall(live.digest) is None
    with pytest.raises(ProviderError):
        await authenticator.find(live.digest)
    store.down = False
    assert await authenticator.find(live.digest) is not None
    assert authenticator.recall(live.digest) is not None


async def test_a_token_that_is_revoked_while_the_store_is_asked_is_not_let_in(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store
) -> None:
    """What a slow store said before the revocation is older than the revocation."""
    issued = await tokens.issue(ANN, provider="staff")
    await authenticator.feed.confirm()
    store.go_on.clear()
    finding = asyncio.create_task(authenticator.find(key(issued)))
    await store.reached.wait()
    await tokens.revoke(RevocationKind.USER, "ann")
    await authenticator.feed.confirm()
    store.go_on.set()
    assert await finding is None
    assert authenticator.recall(key(issued)) is None


async def test_a_revocation_that_the_store_could_not_write_down_overtakes_a_lookup_too(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store
) -> None:
    issued = await tokens.issue(ANN, provider="staff")
    await authenticator.feed.confirm()
    store.go_on.clear()
    finding = asyncio.create_task(authenticator.find(key(issued)))
    await store.reached.wait()
    unsaved = Revocation(RevocationKind.USER, "ann", None, "")
    tokens.unsaved.add(unsaved)
    authenticator.end_at_once(unsaved)
    store.go_on.set()
    assert await finding is None


async def test_a_slow_lookup_that_nothing_overtakes_asks_once(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store
) -> None:
    issued = await tokens.issue(ANN, provider="staff")
    await authenticator.feed.confirm()
    store.go_on.clear()
    finding = asyncio.create_task(authenticator.find(key(issued)))
    await store.reached.wait()
    store.go_on.set()
    assert await finding is not None
    assert store.lookups == 1


async def test_many_who_come_while_the_store_was_away_confirm_once(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store, clock: FakeClock
) -> None:
    live = await sign_in(authenticator, tokens)
    clock.advance(60)
    before = store.confirmations
    results = await asyncio.gather(*(authenticator.find(live.digest) for _ in range(20)))
    assert all(result is live for result in results)
    assert store.confirmations == before + 1


# --- what a revocation ends ---


def ways() -> dict[str, Callable[[CachedToken], tuple[RevocationKind, str]]]:
    return {
        "token": lambda live: (RevocationKind.TOKEN, live.digest.hex()),
        "session": lambda live: (RevocationKind.SESSION, live.session.id),
        "user": lambda live: (RevocationKind.USER, "ann"),
        "group": lambda live: (RevocationKind.GROUP, "dev"),
    }


@pytest.mark.parametrize("way", ways())
async def test_a_revocation_ends_the_token_and_its_streams_and_nobody_elses(
    authenticator: TokenAuthenticator, tokens: Tokens, way: str
) -> None:
    ann, bob = await sign_in(authenticator, tokens), await sign_in(authenticator, tokens, BOB)
    streams = [stream_of(authenticator, ann) for _ in range(2)]
    other = stream_of(authenticator, bob)
    ann.review_answers["question"] = ANSWER
    assert authenticator.open_streams == 3
    await tokens.revoke(*ways()[way](ann))
    await authenticator.feed.confirm()
    assert [stream.cuts for stream in streams] == [1, 1]
    assert ann.revoked
    assert not ann.review_answers, "what was worked out for a token dies with it"
    assert authenticator.recall(ann.digest) is None
    assert await authenticator.find(ann.digest) is None
    assert (other.cuts, bob.revoked, authenticator.recall(bob.digest)) == (0, False, bob)
    assert authenticator.open_streams == 1


async def test_how_many_streams_a_revocation_cut_is_told(tokens: Tokens, clock: FakeClock) -> None:
    reports: list[tuple[RevocationKind, str, int]] = []
    authenticator = TokenAuthenticator(
        tokens, clock, on_revoked=lambda revocation, cut: reports.append((revocation.kind, revocation.value, cut))
    )
    first, second = [await sign_in(authenticator, tokens) for _ in range(2)]
    for live in (first, first, second):
        stream_of(authenticator, live)
    await tokens.revoke(RevocationKind.USER, "ann")
    await tokens.revoke(RevocationKind.USER, "nobody")
    await authenticator.feed.confirm()
    assert reports == [(RevocationKind.USER, "ann", 3), (RevocationKind.USER, "nobody", 0)]


async def test_without_anybody_to_tell_a_revocation_still_counts(
    authenticator: TokenAuthenticator, tokens: Tokens
) -> None:
    live = await sign_in(authenticator, tokens)
    await tokens.revoke(RevocationKind.USER, "ann")
    await authenticator.feed.confirm()
    assert live.revoked


async def test_who_signed_in_again_keeps_the_new_session(authenticator: TokenAuthenticator, tokens: Tokens) -> None:
    """A revocation of the user ends what began before it, and the store knows what did."""
    before = await sign_in(authenticator, tokens)
    await tokens.revoke(RevocationKind.USER, "ann")
    after = await sign_in(authenticator, tokens)
    streams = [stream_of(authenticator, live) for live in (before, after)]
    await authenticator.feed.confirm()
    assert [stream.cuts for stream in streams] == [1, 0]
    assert not after.revoked


async def test_what_a_revocation_may_concern_is_trusted_by_nobody_until_the_store_has_answered(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store
) -> None:
    """The first of two is asked about for long: the second is no longer let in meanwhile."""
    lives = [await sign_in(authenticator, tokens) for _ in range(2)]
    store.go_on.clear()
    store.reached.clear()
    await tokens.revoke(RevocationKind.USER, "ann")
    confirming = asyncio.create_task(authenticator.feed.confirm())
    await store.reached.wait()
    assert [authenticator.recall(live.digest) for live in lives] == [None, None]
    store.go_on.set()
    await confirming


async def test_a_stream_goes_on_when_the_store_is_down_and_is_cut_when_it_is_back(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store
) -> None:
    """Whether it was revoked is not known then; what is asked about is not forgotten."""
    live = await sign_in(authenticator, tokens)
    stream = stream_of(authenticator, live)
    await tokens.revoke(RevocationKind.USER, "ann")
    store.lookups_fail = True
    with pytest.raises(ProviderError):
        await authenticator.feed.confirm()
    assert stream.cuts == 0
    assert authenticator.recall(live.digest) is None
    store.lookups_fail = False
    await authenticator.feed.confirm()
    assert stream.cuts == 1


async def test_a_token_that_is_revoked_by_itself_needs_nobody_to_be_asked(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store
) -> None:
    live = await sign_in(authenticator, tokens)
    stream = stream_of(authenticator, live)
    await tokens.revoke(RevocationKind.TOKEN, live.digest.hex())
    store.lookups_fail = True
    await authenticator.feed.confirm()
    assert stream.cuts == 1


async def test_what_the_store_cannot_write_down_ends_only_what_it_names(
    authenticator: TokenAuthenticator, tokens: Tokens
) -> None:
    ann, bob = await sign_in(authenticator, tokens), await sign_in(authenticator, tokens, BOB)
    streams = [stream_of(authenticator, live) for live in (ann, bob)]
    authenticator.end_at_once(Revocation(RevocationKind.USER, "ann", None, ""))
    assert [stream.cuts for stream in streams] == [1, 0]
    assert authenticator.recall(ann.digest) is None
    assert authenticator.recall(bob.digest) is bob


async def test_when_revocations_may_have_been_missed_every_token_is_asked_about_again(
    tokens: Tokens, store: Store, clock: FakeClock
) -> None:
    """A store that forgot what it told last: what it no longer knows ends, and the rest goes on."""
    authenticator = TokenAuthenticator(tokens, clock)
    gone, stays = await sign_in(authenticator, tokens), await sign_in(authenticator, tokens, BOB)
    streams = [stream_of(authenticator, live) for live in (gone, stays)]
    await tokens.revoke(RevocationKind.USER, "ann")
    store.forgetful = True
    await authenticator.feed.confirm()
    assert [stream.cuts for stream in streams] == [1, 0]
    assert await authenticator.find(stays.digest) is not None


# --- streams ---


async def test_a_stream_that_has_ended_is_not_cut_and_counts_no_more(
    authenticator: TokenAuthenticator, tokens: Tokens
) -> None:
    live = await sign_in(authenticator, tokens)
    ended, goes_on = stream_of(authenticator, live), stream_of(authenticator, live)
    assert authenticator.open_streams == 2
    authenticator.in_use.remove_stream(live, ended)
    assert authenticator.open_streams == 1
    await tokens.revoke(RevocationKind.USER, "ann")
    await authenticator.feed.confirm()
    assert (ended.cuts, goes_on.cuts) == (0, 1)
    assert authenticator.open_streams == 0


async def test_a_stream_outlives_its_token_and_ends_with_its_session(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock
) -> None:
    live = await sign_in(authenticator, tokens)
    stream = stream_of(authenticator, live)
    live.review_answers["question"] = ANSWER
    clock.advance(minutes=15)
    authenticator.tick()
    assert (stream.cuts, authenticator.size, authenticator.open_streams) == (0, 0, 1)
    assert not live.review_answers
    clock.advance(hours=24, minutes=-15, seconds=-1)
    authenticator.tick()
    assert stream.cuts == 0
    clock.advance(1)
    authenticator.tick()
    assert (stream.cuts, authenticator.open_streams) == (1, 0)


async def test_what_has_not_expired_stays_at_a_tick(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock
) -> None:
    old = await sign_in(authenticator, tokens)
    clock.advance(minutes=10)
    young = await sign_in(authenticator, tokens)
    clock.advance(minutes=5)
    authenticator.tick()
    await authenticator.feed.confirm()
    assert authenticator.size == 1
    assert authenticator.recall(old.digest) is None
    assert authenticator.recall(young.digest) is young


@pytest.mark.parametrize("revoked", [True, False])
async def test_a_stream_whose_token_has_expired_is_judged_by_its_session(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock, revoked: bool
) -> None:
    live = await sign_in(authenticator, tokens)
    stream = stream_of(authenticator, live)
    clock.advance(minutes=20)
    if revoked:
        await tokens.revoke(RevocationKind.SESSION, live.session.id)
    else:
        # One that concerns everybody who was there before the session began: it is asked about, and goes on.
        await tokens.revoke(RevocationKind.BEFORE, "", at=live.session.created_at - timedelta(hours=1))
    await authenticator.feed.confirm()
    assert stream.cuts == (1 if revoked else 0)


@pytest.mark.parametrize("revoked", [True, False])
async def test_a_stream_of_a_narrowed_token_is_judged_by_that_also_when_its_holder_is_to_be_checked(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store, clock: FakeClock, revoked: bool
) -> None:
    due = clock.now() + timedelta(minutes=15)

    async def check(stored: Found) -> Found:
        return replace(stored, token=replace(stored.token, expires_at=due))

    authenticator.check_holder = check
    owner = await tokens.issue_token(ANN, provider="ldap", name="job", lifetime=timedelta(days=1))
    scope = Delegation((parse_scope("get pods -n shop"),)).encode()
    narrowed = await tokens.mint(owner.session, lifetime=timedelta(hours=1), delegation=scope)
    live = await authenticator.find(digest(narrowed.token.reveal()))
    assert live is not None
    stream = stream_of(authenticator, live)
    clock.advance(minutes=20)
    authenticator.tick()
    assert stream.cuts == 0
    if revoked:
        await tokens.revoke(RevocationKind.TOKEN, live.digest.hex())
    store.forgetful = True
    await authenticator.feed.confirm()
    assert stream.cuts == (1 if revoked else 0)


async def test_a_token_that_made_room_still_loses_its_stream(tokens: Tokens, clock: FakeClock) -> None:
    authenticator = TokenAuthenticator(tokens, clock, size_per_user=4_000)
    first = await sign_in(authenticator, tokens)
    stream = stream_of(authenticator, first)
    for _ in range(5):
        await sign_in(authenticator, tokens)
    assert authenticator.recall(first.digest) is None
    again = await authenticator.find(first.digest)
    assert again is not None
    other = stream_of(authenticator, again)
    await tokens.revoke(RevocationKind.TOKEN, first.digest.hex())
    await authenticator.feed.confirm()
    assert (stream.cuts, other.cuts) == (1, 1), "also where the same token has come back as another object"


async def test_when_the_clock_is_set_back_a_token_in_use_gets_the_corrected_times(
    authenticator: TokenAuthenticator, tokens: Tokens, store: Store, clock: FakeClock
) -> None:
    live = await sign_in(authenticator, tokens)
    stream_of(authenticator, live)
    clock.set_back(hours=1)
    await store.heartbeat()
    await authenticator.feed.confirm()
    again = await authenticator.find(live.digest)
    assert again is not None
    assert (live.session.expires_at - clock.now(), again.expires_at - clock.now()) == (
        timedelta(hours=24),
        timedelta(minutes=15),
    )


# --- programs: whether the holder of a token is still somebody ---


class Holders:
    """Says who holds the tokens of programs. Each answer is good for a quarter of an hour."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.asked: list[str] = []
        self.gone: set[str] = set()
        self.unknown: set[str] = set()
        self.groups: tuple[str, ...] = ("dev",)

    async def check(self, stored: Found) -> Found | None:
        username = stored.session.user.username
        self.asked.append(username)
        if username in self.unknown:
            raise ProviderError("the identity provider cannot be asked")
        if username in self.gone:
            return None
        token = replace(stored.token, expires_at=self._clock.now() + timedelta(minutes=15))
        return replace(stored, token=token, session=replace(stored.session, user=UserInfo(username, "", self.groups)))


@pytest.fixture
def holders(authenticator: TokenAuthenticator, clock: FakeClock) -> Holders:
    holders = Holders(clock)
    authenticator.check_holder = holders.check
    return holders


async def program(authenticator: TokenAuthenticator, tokens: Tokens, name: str = "job") -> CachedToken:
    """A token of a program in use, which lasts for days."""
    user = UserInfo(name, "", ("dev",))
    issued = await tokens.issue_token(user, provider="ldap", name="key", lifetime=timedelta(days=30))
    live = await authenticator.find(digest(issued.token.reveal()))
    assert live is not None
    return live


async def test_the_holder_of_a_programs_token_is_checked_when_it_is_looked_up_and_a_sign_in_is_not(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock, holders: Holders
) -> None:
    await sign_in(authenticator, tokens)
    assert holders.asked == []
    live = await program(authenticator, tokens)
    assert authenticator.recall(live.digest) is live
    assert holders.asked == ["job"]
    assert live.expires_at == clock.now() + timedelta(minutes=15), "it is looked up again when the check is due"
    assert live.ends_at == clock.now() + timedelta(days=30)


async def test_without_anybody_to_check_holders_a_programs_token_is_good_for_as_long_as_it_lasts(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock
) -> None:
    live = await program(authenticator, tokens)
    assert live.expires_at == clock.now() + timedelta(days=30)


async def test_a_programs_token_is_no_good_after_its_holder_is_gone_and_when_nobody_can_tell(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock, holders: Holders
) -> None:
    live = await program(authenticator, tokens)
    clock.advance(minutes=15)
    assert authenticator.recall(live.digest) is None
    holders.unknown.add("job")
    with pytest.raises(ProviderError):
        await authenticator.find(live.digest)
    holders.unknown.clear()
    holders.gone.add("job")
    assert await authenticator.find(live.digest) is None
    assert authenticator.size == 0


@pytest.mark.parametrize("change", ["nothing", "gone", "other groups"])
async def test_a_programs_stream_is_cut_at_the_next_check_if_its_holder_is_gone_or_another(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock, holders: Holders, change: str
) -> None:
    live = await program(authenticator, tokens)
    stream = stream_of(authenticator, live)
    holders.asked.clear()
    if change == "gone":
        holders.gone.add("job")
    elif change == "other groups":
        holders.groups = ("ops",)
    clock.advance(minutes=15, seconds=-1)
    await authenticator.check_streams()
    assert (holders.asked, stream.cuts) == ([], 0), "the check is not due"
    clock.advance(1)
    await authenticator.check_streams()
    assert holders.asked == ["job"]
    assert (stream.cuts, authenticator.open_streams) == ((0, 1) if change == "nothing" else (1, 0))
    assert live.revoked == (change != "nothing")
    assert authenticator.size == (1 if change == "nothing" else 0)
    await authenticator.check_streams()
    assert holders.asked == ["job"], "not again before the next check is due"


async def test_only_programs_with_open_streams_are_checked_in_between(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock, holders: Holders
) -> None:
    await program(authenticator, tokens)
    person = stream_of(authenticator, await sign_in(authenticator, tokens))
    holders.asked.clear()
    holders.gone.update(("job", "ann"))
    clock.advance(minutes=15)
    await authenticator.check_streams()
    assert (holders.asked, person.cuts) == ([], 0)


async def test_a_holder_that_nobody_can_be_asked_about_keeps_its_stream_and_no_other_from_being_checked(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock, holders: Holders
) -> None:
    names = [f"job-{number}" for number in range(8)]
    streams = [stream_of(authenticator, await program(authenticator, tokens, name)) for name in names]
    holders.unknown.update(names[:4])
    holders.gone.update(names[4:])
    clock.advance(minutes=15)
    with pytest.raises(ProviderError):
        await authenticator.check_streams()
    assert [stream.cuts for stream in streams] == [0] * 4 + [1] * 4
    holders.unknown.clear()
    await authenticator.check_streams()
    assert [stream.cuts for stream in streams] == [0] * 4 + [1] * 4


@pytest.mark.parametrize("without", ["anybody to ask", "the token in the store"])
async def test_a_stream_that_cannot_be_checked_is_left_to_the_revocations(
    authenticator: TokenAuthenticator, tokens: Tokens, clock: FakeClock, holders: Holders, without: str
) -> None:
    live = await program(authenticator, tokens)
    stream = stream_of(authenticator, live)
    holders.asked.clear()
    if without == "anybody to ask":
        authenticator.check_holder = None
    else:
        await tokens.revoke(RevocationKind.SESSION, live.session.id)
    clock.advance(minutes=15)
    await authenticator.check_streams()
    assert (holders.asked, stream.cuts) == ([], 0)
    await authenticator.feed.confirm()
    assert stream.cuts == (0 if without == "anybody to ask" else 1)
