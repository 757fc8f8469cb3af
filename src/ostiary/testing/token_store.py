"""The conformance suite for token stores: what `ostiary.interfaces.token_store` promises, as tests.

    class TestMyStore(TokenStoreContract):
        @pytest.fixture
        async def store(self, clock):
            store = MyStore(clock=clock)
            yield store
            await store.close()

It needs pytest and pytest-asyncio. A store that several processes can share inherits from `SharedTokenStoreContract`
in its place, and gives with the fixture `other` a second one over the same data. Nothing here waits for time to pass.
A store that keeps the records of logins too inherits from `RecordStoreContract` as well, or from its shared form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from hashlib import sha256

import pytest

from ostiary.core.abilities import has_trait
from ostiary.errors import LoginRefused, ProviderError
from ostiary.interfaces.token_store import (
    LARGEST_RECORD,
    MOST_RECORDS,
    RecordStore,
    Revocation,
    RevocationBatch,
    RevocationKind,
    Session,
    SharedBetweenProcesses,
    TokenKind,
    TokenRecord,
    TokenStore,
)
from ostiary.model import UserInfo
from ostiary.testing.abilities import check_members
from ostiary.testing.clock import FakeClock

# Names as identity systems really give them, and as nobody would: they all come back as they went in.
ODD_NAMES = (
    "a,b",
    "a|b",
    "a:b",
    "CN=Ann\\, Dr.,OU=x",
    " lead",
    "trail ",
    "\u0130stanbul",
    "ISTANBUL",
    "\u00e9",
    "e\u0301",
    "'; --",
    "%",
    "\U0001d518",
    "",
)
TIME_LIMIT_SECONDS = 5.0

Sweep = Callable[[], Awaitable[int]]


def digest_of(name: str) -> bytes:
    return sha256(name.encode()).digest()


def make_session(clock: FakeClock, name: str = "s1", **changes: object) -> Session:
    now = clock.now()
    user = UserInfo("ann", "u-1", ("dev", "ops"), (("team", ("red", "blue")),))
    session = Session(name, user, "staff", now, now + timedelta(hours=24), (("dev", "file"),), "kubectl on laptop")
    return replace(session, **changes)  # type: ignore[arg-type]


def make_token(
    session: Session, name: str = "t1", *, minutes: float = 15, kind: TokenKind = TokenKind.ACCESS
) -> TokenRecord:
    begun = session.created_at
    return TokenRecord(digest_of(name), session.id, begun, begun + timedelta(minutes=minutes), kind)


def of_user(session: Session, username: str, *groups: str) -> Session:
    return replace(session, user=UserInfo(username, groups=groups))


async def renewable_session(store: TokenStore, clock: FakeClock) -> Session:
    session = make_session(clock)
    renewal = make_token(session, "r1", minutes=24 * 60, kind=TokenKind.RENEWAL)
    await store.add(session, [make_token(session, "t1"), renewal])
    return session


def in_minutes(clock: FakeClock, minutes: float) -> datetime:
    return clock.now() + timedelta(minutes=minutes)


async def follow(store: TokenStore, after: int) -> RevocationBatch:
    """What comes after this number, as soon as there is something."""
    async with asyncio.timeout(TIME_LIMIT_SECONDS):
        while True:
            batch = await store.revocations_after(after)
            if batch.head != after:
                return batch
            await store.wait_for_revocations(after, TIME_LIMIT_SECONDS)


async def head(store: TokenStore) -> int:
    return (await store.revocations_after(None)).head


def contents(batch: RevocationBatch) -> list[tuple[RevocationKind, str, datetime | None, str]]:
    return [(each.kind, each.value, each.at, each.by) for each in batch.revocations]


@pytest.mark.asyncio
class TokenStoreContract:
    """Inherit from it, and give the fixture `store`."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    async def test_its_members_are_spelt_and_shaped_as_the_contract_says(self, store: TokenStore) -> None:
        check_members("token_store", store)

    # --- what goes in comes out ---

    async def test_what_was_added_is_found(self, store: TokenStore, clock: FakeClock) -> None:
        """S22."""
        session = make_session(clock)
        tokens = [make_token(session), make_token(session, "r1", minutes=60, kind=TokenKind.RENEWAL)]
        await store.add(session, tokens)
        for token in tokens:
            found = await store.find(token.digest)
            assert found is not None
            assert (found.token, found.session) == (token, session)
        assert await store.session("s1") == session
        assert await store.count() == 2

    async def test_an_unknown_digest_and_an_unknown_session_are_nothing(self, store: TokenStore) -> None:
        assert await store.find(digest_of("nobody")) is None
        assert await store.session("nobody") is None
        assert await store.sessions() == []

    @pytest.mark.parametrize("name", ODD_NAMES)
    async def test_names_are_kept_exactly(self, store: TokenStore, clock: FakeClock, name: str) -> None:
        """S14."""
        user = UserInfo(name, name, (name, "x" + name, name + ",x"), ((name, (name, "")),))
        session = make_session(clock, user=user, provider=name, client=name, sources=((name, name),))
        await store.add(session, [make_token(session)])
        found = await store.find(digest_of("t1"))
        assert found is not None
        assert found.session == session
        assert await store.sessions(username=name) == [session]
        assert await store.sessions(group=name) == [session]
        assert await store.sessions(username=name + " ") == []
        assert await store.sessions(group=name + "\u00a0") == []

    @pytest.mark.parametrize("name", ["\ud800", "a\0b"])
    async def test_what_is_no_text_is_refused(self, store: TokenStore, clock: FakeClock, name: str) -> None:
        """S14."""
        session = of_user(make_session(clock), name)
        with pytest.raises(ValueError):  # noqa: PT011  # the words are the store's own
            await store.add(session, [make_token(session)])
        with pytest.raises(ValueError):  # noqa: PT011  # the words are the store's own
            await store.revoke(Revocation(RevocationKind.USER, name, clock.now()))
        assert await store.count() == 0

    async def test_a_time_in_any_zone_is_the_same_instant(self, store: TokenStore, clock: FakeClock) -> None:
        east = timezone(timedelta(hours=5, minutes=30))
        begun = clock.now().astimezone(east)
        session = make_session(clock, created_at=begun, expires_at=begun + timedelta(microseconds=7))
        await store.add(session, [make_token(session, minutes=60)])
        found = await store.find(digest_of("t1"))
        assert found is not None
        assert found.session.created_at == begun
        assert found.session.expires_at - begun == timedelta(microseconds=7)
        clock.advance(0.000007)
        assert await store.find(digest_of("t1")) is None

    async def test_a_session_is_replaced_and_its_tokens_stay(self, store: TokenStore, clock: FakeClock) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        newer = of_user(session, "ann", "dev")
        await store.add(newer, [make_token(session, "t2")])
        for name in ("t1", "t2"):
            found = await store.find(digest_of(name))
            assert found is not None
            assert found.session == newer
        assert await store.sessions(group="ops") == []
        assert await store.sessions(group="dev") == [newer]

    async def test_session_and_tokens_are_stored_both_or_neither(self, store: TokenStore, clock: FakeClock) -> None:
        session, second = make_session(clock), make_session(clock, "s2")
        await store.add(session, [make_token(session)])
        with pytest.raises(ProviderError):
            await store.add(second, [make_token(second, "t2"), make_token(second, "t1")])
        assert await store.session("s2") is None
        assert await store.find(digest_of("t2")) is None
        found = await store.find(digest_of("t1"))
        assert found is not None
        assert found.session == session

    async def test_many_at_once_are_all_stored(self, store: TokenStore, clock: FakeClock) -> None:
        sessions = [make_session(clock, f"s{number}") for number in range(300)]
        await asyncio.gather(*(store.add(session, [make_token(session, session.id)]) for session in sessions))
        found = [await store.find(digest_of(session.id)) for session in sessions]
        assert [item and item.session for item in found] == sessions

    # --- time ---

    async def test_a_token_is_gone_the_moment_it_expires(self, store: TokenStore, clock: FakeClock) -> None:
        """S24: also before any sweep."""
        session = make_session(clock)
        await store.add(session, [make_token(session, minutes=5)])
        clock.advance(minutes=5, seconds=-0.000001)
        assert await store.find(digest_of("t1")) is not None
        clock.advance(0.000001)
        assert await store.find(digest_of("t1")) is None
        assert await store.count() == 1
        assert await store.session("s1") == session

    async def test_a_token_is_gone_the_moment_its_session_expires(self, store: TokenStore, clock: FakeClock) -> None:
        """S24."""
        session = make_session(clock, expires_at=clock.now() + timedelta(minutes=1))
        await store.add(session, [make_token(session, minutes=5)])
        clock.advance(minutes=1)
        assert await store.find(digest_of("t1")) is None
        assert await store.session("s1") is None
        assert await store.sessions() == []

    async def test_a_sweep_deletes_what_has_expired_and_nothing_else(self, store: TokenStore, clock: FakeClock) -> None:
        """S24."""
        begun = clock.now()
        brief = make_session(clock, "brief", expires_at=begun + timedelta(minutes=1))
        lasting = make_session(clock, "lasting")
        await store.add(brief, [make_token(brief, "b1"), make_token(brief, "b2", minutes=60)])
        await store.add(lasting, [make_token(lasting, "l1", minutes=1), make_token(lasting, "l2")])
        assert await store.sweep() == 0
        clock.advance(minutes=1)
        assert await store.sweep() == 3
        assert await store.count() == 1
        assert await store.sessions() == [lasting]
        assert await store.find(digest_of("l2")) is not None
        assert await store.sweep() == 0

    async def test_a_sweep_of_many_leaves_none(self, store: TokenStore, clock: FakeClock) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session, f"t{number}", minutes=1) for number in range(2345)])
        clock.advance(minutes=1)
        assert await store.sweep() == 2345
        assert await store.count() == 0

    # --- listing ---

    async def test_sessions_are_listed_the_newest_first(self, store: TokenStore, clock: FakeClock) -> None:
        names = []
        for number, username in enumerate(["ann", "bob", "ann", "bob", "ann"]):
            names.append(f"s{number}")
            session = of_user(make_session(clock, names[-1]), username, "all", f"of {username}")
            await store.add(session, [])
            clock.advance(1)
        assert [session.id for session in await store.sessions()] == names[::-1]
        assert [session.id for session in await store.sessions(limit=2)] == ["s4", "s3"]
        assert [session.id for session in await store.sessions(username="bob")] == ["s3", "s1"]
        assert [session.id for session in await store.sessions(group="of ann", limit=1)] == ["s4"]
        assert await store.sessions(username="ann", group="of bob") == []

    # --- revocation ---

    async def test_revoking_a_token_leaves_its_session(self, store: TokenStore, clock: FakeClock) -> None:
        """S65."""
        session = make_session(clock)
        await store.add(session, [make_token(session, "t1"), make_token(session, "t2")])
        revocation = Revocation(RevocationKind.TOKEN, digest_of("t1").hex(), clock.now())
        assert await store.revoke(revocation) == 1
        assert await store.find(digest_of("t1")) is None
        assert await store.find(digest_of("t2")) is not None
        assert await store.session("s1") == session
        assert await store.revoke(revocation) == 0

    @pytest.mark.parametrize("value", ["", "zz", "ab", digest_of("t1").hex().upper()])
    async def test_a_token_is_revoked_by_the_hex_of_its_digest_only(
        self, store: TokenStore, clock: FakeClock, value: str
    ) -> None:
        with pytest.raises(ValueError):  # noqa: PT011  # the words are the store's own
            await store.revoke(Revocation(RevocationKind.TOKEN, value, clock.now()))

    async def test_revoking_a_session_ends_all_its_tokens_and_no_others(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        """S65."""
        one, two = make_session(clock, "s1"), make_session(clock, "s2")
        await store.add(one, [make_token(one, "a"), make_token(one, "b")])
        await store.add(two, [make_token(two, "c")])
        assert await store.revoke(Revocation(RevocationKind.SESSION, "s1", clock.now())) == 1
        assert await store.find(digest_of("a")) is None
        assert await store.find(digest_of("b")) is None
        assert await store.find(digest_of("c")) is not None
        assert await store.session("s1") is None

    @pytest.mark.parametrize("name", ODD_NAMES)
    async def test_a_user_is_revoked_by_the_exact_name(self, store: TokenStore, clock: FakeClock, name: str) -> None:
        """S14, S64: a user is out at once, however long the session was to last."""
        them, another = of_user(make_session(clock, "s1"), name), of_user(make_session(clock, "s2"), name + "x")
        for session in (them, another):
            await store.add(session, [make_token(session, session.id)])
        assert await store.revoke(Revocation(RevocationKind.USER, name, clock.now())) == 1
        assert await store.sessions() == [another]

    @pytest.mark.parametrize("name", ODD_NAMES)
    async def test_a_group_is_revoked_by_the_exact_name(self, store: TokenStore, clock: FakeClock, name: str) -> None:
        """S14, S64: whoever is in the group must sign in again, and so loses a membership that was taken away."""
        inside = of_user(make_session(clock, "s1"), "ann", "z", name)
        outside = of_user(make_session(clock, "s2"), "bob", name + ",z", "z")
        for session in (inside, outside):
            await store.add(session, [make_token(session, session.id)])
        assert await store.revoke(Revocation(RevocationKind.GROUP, name, clock.now())) == 1
        assert await store.sessions() == [outside]
        assert await store.sessions(group=name) == []

    async def test_who_signs_in_after_a_revocation_is_in_again(self, store: TokenStore, clock: FakeClock) -> None:
        await store.revoke(Revocation(RevocationKind.USER, "ann", clock.now()))
        await store.revoke(Revocation(RevocationKind.GROUP, "dev", clock.now()))
        await store.revoke(Revocation(RevocationKind.BEFORE, "", clock.now()))
        clock.advance(0.000001)
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        assert await store.find(digest_of("t1")) is not None

    async def test_everything_before_a_time_is_revoked(self, store: TokenStore, clock: FakeClock) -> None:
        sessions = []
        for number in range(3):
            sessions.append(make_session(clock, f"s{number}"))
            await store.add(sessions[-1], [make_token(sessions[-1], f"t{number}")])
            clock.advance(10)
        at = sessions[1].created_at
        assert await store.revoke(Revocation(RevocationKind.BEFORE, "", at)) == 2
        assert await store.sessions() == [sessions[2]]

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (RevocationKind.SESSION, "s1"),
            (RevocationKind.USER, "ann"),
            (RevocationKind.GROUP, "ops"),
            (RevocationKind.BEFORE, ""),
        ],
    )
    async def test_a_revocation_that_was_quicker_than_the_session_still_ends_it(
        self, store: TokenStore, clock: FakeClock, kind: RevocationKind, value: str
    ) -> None:
        """T3: the sign-in was under way, and knows nothing of what an operator did meanwhile."""
        session = make_session(clock)
        clock.advance(2)
        await store.revoke(Revocation(kind, value, clock.now()))
        with pytest.raises(LoginRefused):
            await store.add(session, [make_token(session)])
        assert await store.find(digest_of("t1")) is None
        assert await store.session("s1") is None

    @pytest.mark.parametrize("kind", list(RevocationKind))
    @pytest.mark.parametrize("ahead", [timedelta(minutes=1, seconds=1), timedelta(days=365), None])
    async def test_a_revocation_that_lies_ahead_is_refused_and_locks_nobody_out(
        self, store: TokenStore, clock: FakeClock, kind: RevocationKind, ahead: timedelta | None
    ) -> None:
        at = datetime.max.replace(tzinfo=clock.now().tzinfo) if ahead is None else clock.now() + ahead
        value = digest_of("t1").hex() if kind is RevocationKind.TOKEN else ""
        before = await head(store)
        with pytest.raises(ValueError):  # noqa: PT011  # the words are the store's own
            await store.revoke(Revocation(kind, value, at))
        assert await head(store) == before
        await store.add(make_session(clock), [])

    async def test_a_clock_that_is_a_little_ahead_is_forgiven_and_locks_nobody_out(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock)
        await store.add(session, [])
        clock.advance(1)
        assert await store.revoke(Revocation(RevocationKind.BEFORE, "", clock.now() + timedelta(minutes=1))) == 1
        clock.advance(1)
        session = make_session(clock, "s2")
        await store.add(session, [])
        assert await store.sessions() == [session]

    async def test_expired_sessions_are_not_counted_as_ended(self, store: TokenStore, clock: FakeClock) -> None:
        session = make_session(clock, expires_at=clock.now() + timedelta(minutes=1))
        await store.add(session, [make_token(session)])
        clock.advance(minutes=1)
        assert await store.revoke(Revocation(RevocationKind.USER, "ann", clock.now())) == 0

    # --- what a revocation leaves behind ---

    async def test_a_mark_can_be_taken_back(self, store: TokenStore, clock: FakeClock) -> None:
        """Whoever began to sign in before the revocation is no longer refused; what has ended stays ended."""
        ended, late = make_session(clock, "s1"), make_session(clock, "s2")
        await store.add(ended, [make_token(ended)])
        clock.advance(2)
        await store.revoke(Revocation(RevocationKind.USER, "ann", by="root"))
        (mark,) = await store.marks()
        assert (mark.kind, mark.value, mark.by, mark.recorded_at) == (RevocationKind.USER, "ann", "root", clock.now())
        with pytest.raises(LoginRefused):
            await store.add(late, [])
        assert await store.undo(mark.sequence)
        assert not await store.undo(mark.sequence)
        assert not await store.undo(mark.sequence + 1)
        assert await store.marks() == []
        await store.add(late, [])
        assert await store.sessions() == [late]

    async def test_marks_expire_when_nothing_is_left_that_they_could_concern(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        clock.advance(minutes=59)
        await store.sweep()
        assert len(await store.marks()) == 1
        clock.advance(minutes=1)
        await store.sweep()
        assert await store.marks() == []

    async def test_a_sign_in_older_than_what_is_known_of_revocations_is_refused(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        old = make_session(clock, sequence=await head(store))
        await store.revoke(Revocation(RevocationKind.USER, "bob"))
        clock.advance(hours=2)
        await store.sweep()
        with pytest.raises(LoginRefused):
            await store.add(old, [])
        await store.add(make_session(clock, sequence=await head(store)), [])

    # --- a clock that is set back ---

    @pytest.mark.parametrize(
        ("kind", "value"), [(RevocationKind.USER, "ann"), (RevocationKind.GROUP, "ops"), (RevocationKind.BEFORE, "")]
    )
    @pytest.mark.parametrize("corrected", [False, True])
    async def test_a_revocation_ends_sessions_that_began_before_the_clock_was_set_back(
        self, store: TokenStore, clock: FakeClock, kind: RevocationKind, value: str, corrected: bool
    ) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        clock.set_back(hours=1)
        if corrected:
            await store.heartbeat()
        assert await store.revoke(Revocation(kind, value)) == 1
        assert await store.find(digest_of("t1")) is None
        again = make_session(clock, "s2", sequence=await head(store))
        await store.add(again, [make_token(again, "t2")])
        assert await store.find(digest_of("t2")) is not None

    async def test_a_sign_in_under_way_is_revoked_although_the_clock_was_set_back(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock, sequence=await head(store))
        clock.set_back(hours=1)
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        with pytest.raises(LoginRefused):
            await store.add(session, [])

    @pytest.mark.parametrize("corrected", [False, True])
    async def test_what_has_expired_is_not_good_again_when_the_clock_is_set_back(
        self, store: TokenStore, clock: FakeClock, corrected: bool
    ) -> None:
        session = make_session(clock, expires_at=clock.now() + timedelta(minutes=30))
        await store.add(session, [make_token(session, minutes=5), make_token(session, "t2", minutes=20)])
        clock.advance(minutes=5)
        assert await store.find(digest_of("t1")) is None
        clock.set_back(hours=1)
        if corrected:
            await store.heartbeat()
        assert await store.find(digest_of("t1")) is None
        assert await store.find(digest_of("t2")) is not None

    async def test_everything_lives_as_long_as_it_was_meant_to_when_the_clock_is_set_back(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock, expires_at=clock.now() + timedelta(minutes=10))
        await store.add(session, [make_token(session, minutes=5)])
        clock.advance(minutes=1)
        await store.heartbeat()
        before = await head(store)
        clock.set_back(hours=1)
        await store.heartbeat()
        assert not (await store.revocations_after(before)).complete, "what was remembered has other times now"
        found = await store.find(digest_of("t1"))
        assert found is not None
        assert found.token.expires_at == in_minutes(clock, 4)
        assert found.session.expires_at == in_minutes(clock, 9)
        clock.advance(minutes=4)
        assert await store.find(digest_of("t1")) is None
        clock.advance(minutes=5)
        assert await store.session("s1") is None

    async def test_who_signs_in_after_the_clock_was_set_back_is_in(self, store: TokenStore, clock: FakeClock) -> None:
        old = make_session(clock)
        await store.add(old, [make_token(old)])
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        await store.heartbeat()
        clock.set_back(hours=1)
        session = make_session(clock, "s2", sequence=await head(store))
        await store.add(session, [make_token(session, "t2", minutes=5)])
        assert await store.find(digest_of("t2")) is not None
        clock.advance(minutes=5)
        assert await store.find(digest_of("t2")) is None

    async def test_a_clock_that_is_set_back_by_a_moment_is_waited_for(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session, minutes=1)])
        clock.advance(minutes=1)
        await store.heartbeat()
        before = await head(store)
        clock.set_back(1)
        await store.heartbeat()
        assert await head(store) == before
        assert await store.find(digest_of("t1")) is None

    # --- renewal ---

    async def test_a_renewal_spends_its_token_and_adds_new_ones(self, store: TokenStore, clock: FakeClock) -> None:
        """C1."""
        session = await renewable_session(store, clock)
        clock.advance(minutes=10)
        at = clock.now()
        assert await store.renew(digest_of("r1"), at=at, session=session, tokens=[make_token(session, "t2")])
        assert await store.find(digest_of("t2")) is not None
        assert await store.find(digest_of("t1")) is not None, "the same user: the older token lives out its time"
        spent = await store.find(digest_of("r1"))
        assert spent is not None
        assert (spent.token.kind, spent.token.issued_at) == (TokenKind.SPENT, at)

    async def test_a_renewal_token_is_spent_once(self, store: TokenStore, clock: FakeClock) -> None:
        session = await renewable_session(store, clock)
        attempts = [
            store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[make_token(session, f"n{number}")])
            for number in range(10)
        ]
        assert sorted(await asyncio.gather(*attempts)) == [False] * 9 + [True]
        assert await store.count() == 3

    async def test_only_a_living_renewal_token_of_this_session_renews(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = await renewable_session(store, clock)
        stranger = make_session(clock, "s2")
        await store.add(stranger, [make_token(stranger, "r2", minutes=1, kind=TokenKind.RENEWAL)])
        clock.advance(minutes=1)
        for spent, of in [("t1", session), ("nobody", session), ("r1", stranger), ("r2", stranger)]:
            tokens = [make_token(of, "new")]
            assert not await store.renew(digest_of(spent), at=clock.now(), session=of, tokens=tokens)
        assert await store.find(digest_of("new")) is None

    async def test_a_revoked_session_is_not_brought_back_by_a_renewal(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        """T3."""
        session = await renewable_session(store, clock)
        await store.revoke(Revocation(RevocationKind.USER, "ann", clock.now()))
        clock.advance(1)
        tokens = [make_token(session, "t2")]
        assert not await store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=tokens)
        assert await store.session("s1") is None

    async def test_an_older_revocation_of_a_group_does_not_end_who_joins_it_now(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = await renewable_session(store, clock)
        clock.advance(1)
        await store.revoke(Revocation(RevocationKind.GROUP, "new", clock.now()))
        clock.advance(1)
        joined = of_user(session, "ann", "new")
        assert await store.renew(digest_of("r1"), at=clock.now(), session=joined, tokens=[])
        assert await store.sessions(group="new") == [joined]

    async def test_a_group_that_is_revoked_while_somebody_joins_it_is_not_renewed(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = await renewable_session(store, clock)
        since = await head(store)
        clock.set_back(0.5)
        await store.revoke(Revocation(RevocationKind.GROUP, "shut"))
        joined = of_user(session, "ann", "shut")
        tokens = [make_token(session, "t2")]
        assert not await store.renew(digest_of("r1"), at=clock.now(), session=joined, tokens=tokens, since=since)
        assert await store.session("s1") == session
        assert await store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=tokens, since=since)

    async def test_older_access_tokens_end_when_a_renewal_changes_the_user(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        """T3: a group that was taken away is gone with the renewal, also from caches that know the older token."""
        session = await renewable_session(store, clock)
        before = await head(store)
        without = of_user(session, "ann", "dev")
        assert await store.renew(digest_of("r1"), at=clock.now(), session=without, tokens=[make_token(session, "t2")])
        assert await store.find(digest_of("t1")) is None
        found = await store.find(digest_of("t2"))
        assert found is not None
        assert found.session.user.groups == ("dev",)
        (told,) = (await follow(store, before)).revocations
        assert (told.kind, told.value) == (RevocationKind.TOKEN, digest_of("t1").hex())
        assert await store.find(digest_of("r1")) is not None

    async def test_a_spent_token_cannot_be_made_to_be_forgotten(self, store: TokenStore, clock: FakeClock) -> None:
        session = await renewable_session(store, clock)
        assert await store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[])
        assert await store.revoke(Revocation(RevocationKind.TOKEN, digest_of("r1").hex(), clock.now())) == 0
        assert await store.find(digest_of("r1")) is not None

    # --- following revocations ---

    async def test_revocations_have_numbers_without_gaps_and_are_told_in_order(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        await store.revoke(Revocation(RevocationKind.USER, "before"))
        start = await head(store)
        made = [
            Revocation(RevocationKind.USER, "ann", None, "an operator"),
            Revocation(RevocationKind.GROUP, "a,b|c", clock.now()),
            Revocation(RevocationKind.SESSION, "s1"),
            Revocation(RevocationKind.BEFORE, "", clock.now() - timedelta(days=1)),
        ]
        for revocation in made:
            await store.revoke(revocation)
        batch = await store.revocations_after(start)
        assert [replace(each, sequence=0, recorded_at=None) for each in batch.revocations] == made
        assert [each.sequence for each in batch.revocations] == list(range(start + 1, start + 5))
        assert {each.recorded_at for each in batch.revocations} == {clock.now()}
        assert batch.head == start + 4
        assert batch.complete
        assert await store.revocations_after(start + 3) == replace(batch, revocations=batch.revocations[3:])
        assert await store.revocations_after(start + 4) == RevocationBatch(start + 4)

    async def test_who_missed_some_that_are_forgotten_is_told_so(self, store: TokenStore, clock: FakeClock) -> None:
        start = await head(store)
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        clock.advance(hours=2)
        await store.sweep()
        await store.revoke(Revocation(RevocationKind.USER, "bob"))
        assert not (await store.revocations_after(start)).complete
        assert (await store.revocations_after(start + 1)).complete

    async def test_who_waits_for_revocations_is_woken(self, store: TokenStore) -> None:
        start = await head(store)
        waiting = [asyncio.ensure_future(follow(store, start)) for _ in range(2)]
        await asyncio.sleep(0)
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        for batch in await asyncio.gather(*waiting):
            assert [each.value for each in batch.revocations] == ["ann"]

    async def test_who_begins_to_wait_too_late_does_not_wait(self, store: TokenStore) -> None:
        start = await head(store)
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        await asyncio.wait_for(store.wait_for_revocations(start, 10 * TIME_LIMIT_SECONDS), TIME_LIMIT_SECONDS)

    async def test_who_waits_for_revocations_is_let_go_when_the_store_closes(self, store: TokenStore) -> None:
        waiting = asyncio.ensure_future(store.wait_for_revocations(await head(store), 10 * TIME_LIMIT_SECONDS))
        await asyncio.sleep(0)
        await store.close()
        await asyncio.wait_for(waiting, TIME_LIMIT_SECONDS)

    # --- the end ---

    async def test_closing_twice_is_harmless_and_nothing_is_answered_afterwards(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        await store.close()
        await store.close()
        with pytest.raises(ProviderError) as caught:
            await store.find(digest_of("t1"))
        assert caught.value.code == "token-store-unavailable"
        with pytest.raises(ProviderError):
            await store.revoke(Revocation(RevocationKind.USER, "ann", clock.now()))


class SharedTokenStoreContract(TokenStoreContract):
    """For stores that several processes share. Give the fixture `other` too: a second store over the same data."""

    async def test_it_says_that_processes_can_share_it(self, store: TokenStore) -> None:
        assert has_trait(store, SharedBetweenProcesses), "declare shared_between_processes = True"

    async def test_what_one_adds_the_other_finds(self, store: TokenStore, other: TokenStore, clock: FakeClock) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        found = await other.find(digest_of("t1"))
        assert found is not None
        assert found.session == session

    async def test_what_one_revokes_the_other_no_longer_finds_and_is_told(
        self, store: TokenStore, other: TokenStore, clock: FakeClock
    ) -> None:
        """T3: the other replica too."""
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        start = await head(other)
        waiting = asyncio.ensure_future(follow(other, start))
        assert await other.find(digest_of("t1")) is not None
        await store.revoke(Revocation(RevocationKind.USER, "ann", by="an operator"))
        assert await other.find(digest_of("t1")) is None
        assert contents(await waiting) == [(RevocationKind.USER, "ann", None, "an operator")]
        assert await head(other) == await head(store) == start + 1

    async def test_when_the_clock_is_set_back_both_agree(
        self, store: TokenStore, other: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session, minutes=5), make_token(session, "t2", minutes=20)])
        clock.advance(minutes=5)
        assert await other.find(digest_of("t1")) is None
        assert await other.find(digest_of("t2")) is not None
        await other.heartbeat()
        clock.set_back(hours=1)
        await store.heartbeat()
        for each in (store, other):
            assert await each.find(digest_of("t1")) is None
            found = await each.find(digest_of("t2"))
            assert found is not None
            assert found.token.expires_at == in_minutes(clock, 15)

    async def test_one_renewal_token_is_spent_once_by_both(
        self, store: TokenStore, other: TokenStore, clock: FakeClock
    ) -> None:
        session = await renewable_session(store, clock)
        attempts = [
            each.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[make_token(session, f"n{number}")])
            for number, each in enumerate([store, other] * 5)
        ]
        assert sorted(await asyncio.gather(*attempts)) == [False] * 9 + [True]

    async def test_both_write_at_once(self, store: TokenStore, other: TokenStore, clock: FakeClock) -> None:
        sessions = [make_session(clock, f"s{number}") for number in range(100)]
        await asyncio.gather(
            *(
                each.add(session, [make_token(session, session.id)])
                for session, each in zip(sessions, [store, other] * 50, strict=True)
            )
        )
        assert await store.count() == await other.count() == 100


@pytest.mark.asyncio
class RecordStoreContract:
    """What logins under way remember. Inherit from it, and give the fixture `store`."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    async def test_a_record_is_found_until_it_is_taken_and_then_by_nobody(
        self, store: RecordStore, clock: FakeClock
    ) -> None:
        """L1."""
        data = bytes(range(256))
        assert await store.put_record(digest_of("a"), data, in_minutes(clock, 10))
        assert await store.find_record(digest_of("a")) == data
        assert await store.find_record(digest_of("b")) is None
        assert await store.take_record(digest_of("b")) is None
        assert await store.take_record(digest_of("a")) == data
        assert await store.take_record(digest_of("a")) is None
        assert await store.find_record(digest_of("a")) is None

    async def test_of_many_who_take_a_record_at_once_one_gets_it(self, store: RecordStore, clock: FakeClock) -> None:
        """L1."""
        await store.put_record(digest_of("a"), b"x", in_minutes(clock, 10))
        taken = await asyncio.gather(*(store.take_record(digest_of("a")) for _ in range(20)))
        assert sorted(taken, key=bool) == [None] * 19 + [b"x"]

    async def test_a_record_is_gone_the_moment_it_expires(self, store: RecordStore, clock: FakeClock) -> None:
        """L1: also before any sweep."""
        for name in ("a", "b"):
            await store.put_record(digest_of(name), b"x", in_minutes(clock, 10))
        clock.advance(minutes=10, seconds=-0.000001)
        assert await store.find_record(digest_of("a")) == b"x"
        clock.advance(0.000001)
        assert await store.find_record(digest_of("a")) is None
        assert await store.take_record(digest_of("a")) is None
        assert await store.put_record(digest_of("b"), b"y", in_minutes(clock, 10))
        assert await store.take_record(digest_of("b")) == b"y"

    async def test_a_sweep_leaves_what_has_not_expired(
        self, store: RecordStore, clock: FakeClock, sweep: Sweep
    ) -> None:
        await store.put_record(digest_of("a"), b"x", in_minutes(clock, 1))
        await store.put_record(digest_of("b"), b"y", in_minutes(clock, 2))
        clock.advance(minutes=1)
        await sweep()
        assert await store.find_record(digest_of("b")) == b"y"

    @pytest.fixture
    def sweep(self, store: TokenStore) -> Sweep:
        return store.sweep

    async def test_a_key_that_is_in_use_is_not_taken_over(self, store: RecordStore, clock: FakeClock) -> None:
        await store.put_record(digest_of("a"), b"first", in_minutes(clock, 10))
        assert not await store.put_record(digest_of("a"), b"second", in_minutes(clock, 10))
        assert await store.find_record(digest_of("a")) == b"first"

    async def test_what_is_too_large_is_refused(self, store: RecordStore, clock: FakeClock) -> None:
        assert await store.put_record(digest_of("a"), b"x" * LARGEST_RECORD, in_minutes(clock, 10))
        with pytest.raises(ValueError):  # noqa: PT011  # the words are the store's own
            await store.put_record(digest_of("b"), b"x" * (LARGEST_RECORD + 1), in_minutes(clock, 10))

    async def test_the_oldest_make_room_and_there_are_never_more(self, store: RecordStore, clock: FakeClock) -> None:
        """L1: ten thousand logins that nobody finishes stay bounded, and the next one begins all the same."""
        until = in_minutes(clock, 10)
        await store.put_record(digest_of("first"), b"x", until)
        await store.put_record(digest_of("second"), b"x", until)
        await asyncio.gather(
            *(store.put_record(digest_of(str(number)), b"x", until) for number in range(MOST_RECORDS - 1))
        )
        assert await store.find_record(digest_of("first")) is None
        assert await store.find_record(digest_of("second")) == b"x"
        assert await store.find_record(digest_of(str(MOST_RECORDS - 2))) == b"x"

    async def test_nothing_is_kept_or_found_once_it_is_closed(self, store: RecordStore, clock: FakeClock) -> None:
        closing: TokenStore = store  # type: ignore[assignment]  # every record store is a token store
        await closing.close()
        for asked in (store.find_record(digest_of("a")), store.take_record(digest_of("a"))):
            with pytest.raises(ProviderError):
                await asked
        with pytest.raises(ProviderError):
            await store.put_record(digest_of("a"), b"x", in_minutes(clock, 10))


class SharedRecordStoreContract(RecordStoreContract):
    """For stores that several processes share; give the fixture `other` too."""

    async def test_what_one_puts_the_other_takes_and_only_one_of_them(
        self, store: RecordStore, other: RecordStore, clock: FakeClock
    ) -> None:
        """L1: any worker can finish a login, and one of them does."""
        await store.put_record(digest_of("a"), b"x", in_minutes(clock, 10))
        assert await other.find_record(digest_of("a")) == b"x"
        taken = await asyncio.gather(*(each.take_record(digest_of("a")) for each in [store, other] * 5))
        assert sorted(taken, key=bool) == [None] * 9 + [b"x"]
