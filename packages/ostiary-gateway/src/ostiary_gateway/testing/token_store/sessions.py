"""Sessions, tokens, refresh, records of sign-ins, and pages of sessions: suites for token stores."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta, timezone
from typing import ClassVar, cast

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary.testing import FakeClock
from ostiary_gateway.interfaces.store_capabilities import ListedSession, PagesSessions
from ostiary_gateway.interfaces.token_store import (
    LARGEST_RECORD,
    MOST_RECORDS,
    RecordStore,
    Revocation,
    RevocationKind,
    Session,
    SessionKind,
    TokenKind,
    TokenStore,
)
from ostiary_gateway.testing.token_store.samples import (
    ODD_NAMES,
    Sweep,
    case,
    digest_of,
    follow,
    head,
    in_minutes,
    make_session,
    make_token,
    of_user,
    renewable_session,
)


class StoringContract:
    """Sessions and tokens: add, find, list, expire, sweep and close. Part of `TokenStoreContract`."""

    # --- reading and writing ---

    async def test_what_was_added_is_found(self, store: TokenStore, clock: FakeClock) -> None:
        """S22."""
        session = make_session(clock)
        tokens = [make_token(session), make_token(session, "r1", minutes=60, kind=TokenKind.RENEWAL)]
        await store.add(session, tokens)
        for token in tokens:
            entry = await store.find(token.digest)
            assert entry is not None
            assert (entry.token, entry.session) == (token, session)
        assert await store.session("s1") == session
        assert await store.count() == 2

    async def test_an_unknown_digest_and_an_unknown_session_are_nothing(self, store: TokenStore) -> None:
        assert await store.find(digest_of("nobody")) is None
        assert await store.session("nobody") is None
        assert await store.sessions() == []

    async def test_names_are_kept_exactly(self, store: TokenStore, clock: FakeClock) -> None:
        """S14."""
        sessions = {}
        for number, name in enumerate(ODD_NAMES):
            user = UserInfo(name, name, (name, "x" + name, name + ",x"), ((name, (name, "")),))
            sources = ((name, name),)
            session = make_session(clock, f"s{number}", user=user, provider=name, client=name, sources=sources)
            sessions[name] = session
            await store.add(session, [make_token(session, session.id)])
        for name, session in sessions.items():
            with case(name):
                entry = await store.find(digest_of(session.id))
                assert entry is not None
                assert entry.session == session
                assert await store.sessions(username=name) == [session]
                assert await store.sessions(group=name) == [session]
                assert await store.sessions(username=name + " ") == []
                assert await store.sessions(group=name + "\u00a0") == []

    async def test_what_is_no_text_is_refused(self, store: TokenStore, clock: FakeClock) -> None:
        """S14."""
        for name in ("\ud800", "a\0b"):
            with case(name):
                session = of_user(make_session(clock), name)
                with pytest.raises(ValueError):  # noqa: PT011  # the message is the store's own
                    await store.add(session, [make_token(session)])
                with pytest.raises(ValueError):  # noqa: PT011  # the message is the store's own
                    await store.revoke(Revocation(RevocationKind.USER, name, clock.now()))
                assert await store.count() == 0

    async def test_a_time_in_any_zone_is_the_same_instant(self, store: TokenStore, clock: FakeClock) -> None:
        east = timezone(timedelta(hours=5, minutes=30))
        start = clock.now().astimezone(east)
        session = make_session(clock, created_at=start, expires_at=start + timedelta(microseconds=7))
        await store.add(session, [make_token(session, minutes=60)])
        entry = await store.find(digest_of("t1"))
        assert entry is not None
        assert entry.session.created_at == start
        assert entry.session.expires_at - start == timedelta(microseconds=7)
        clock.advance(0.000007)
        assert await store.find(digest_of("t1")) is None

    async def test_a_session_is_replaced_and_its_tokens_stay(self, store: TokenStore, clock: FakeClock) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        newer = of_user(session, "ann", "dev")
        await store.add(newer, [make_token(session, "t2")])
        for name in ("t1", "t2"):
            entry = await store.find(digest_of(name))
            assert entry is not None
            assert entry.session == newer
        assert await store.sessions(group="ops") == []
        assert await store.sessions(group="dev") == [newer]

    async def test_session_and_tokens_are_stored_both_or_neither(self, store: TokenStore, clock: FakeClock) -> None:
        session, second = make_session(clock), make_session(clock, "s2")
        await store.add(session, [make_token(session)])
        with pytest.raises(ProviderError):
            await store.add(second, [make_token(second, "t2"), make_token(second, "t1")])
        assert await store.session("s2") is None
        assert await store.find(digest_of("t2")) is None
        entry = await store.find(digest_of("t1"))
        assert entry is not None
        assert entry.session == session

    async def test_many_at_once_are_all_stored(self, store: TokenStore, clock: FakeClock) -> None:
        sessions = [make_session(clock, f"s{number}") for number in range(300)]
        await asyncio.gather(*(store.add(session, [make_token(session, session.id)]) for session in sessions))
        entries = [await store.find(digest_of(session.id)) for session in sessions]
        assert [item and item.session for item in entries] == sessions

    # --- expiry ---

    async def test_a_token_is_gone_the_moment_it_expires(self, store: TokenStore, clock: FakeClock) -> None:
        """S24: even before any sweep."""
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
        start = clock.now()
        brief = make_session(clock, "brief", expires_at=start + timedelta(minutes=1))
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

    # --- close ---

    async def test_closing_twice_is_harmless_and_nothing_is_answered_afterwards(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock)
        await store.add(session, [make_token(session)])
        await store.close()
        await store.close()
        with pytest.raises(ProviderError) as failure:
            await store.find(digest_of("t1"))
        assert failure.value.code == "token-store-unavailable"
        with pytest.raises(ProviderError):
            await store.revoke(Revocation(RevocationKind.USER, "ann", clock.now()))


class RenewingContract:
    """Refreshes: one token used, a new pair added, and concurrent revocations. Part of `TokenStoreContract`."""

    async def test_a_renewal_spends_its_token_and_adds_new_ones(self, store: TokenStore, clock: FakeClock) -> None:
        """C1."""
        session = await renewable_session(store, clock)
        clock.advance(minutes=10)
        at = clock.now()
        assert await store.renew(digest_of("r1"), at=at, session=session, tokens=[make_token(session, "t2")])
        assert await store.find(digest_of("t2")) is not None
        assert await store.find(digest_of("t1")) is not None, "the same user: the older token lives out its time"
        entry = await store.find(digest_of("r1"))
        assert entry is not None
        assert (entry.token.kind, entry.token.issued_at) == (TokenKind.SPENT, at)

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
        for name, of in [("t1", session), ("nobody", session), ("r1", stranger), ("r2", stranger)]:
            tokens = [make_token(of, "new")]
            assert not await store.renew(digest_of(name), at=clock.now(), session=of, tokens=tokens)
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
        """T3: a removed group is gone with the refresh, even from caches that contain the older token."""
        session = await renewable_session(store, clock)
        before = await head(store)
        without = of_user(session, "ann", "dev")
        assert await store.renew(digest_of("r1"), at=clock.now(), session=without, tokens=[make_token(session, "t2")])
        assert await store.find(digest_of("t1")) is None
        entry = await store.find(digest_of("t2"))
        assert entry is not None
        assert entry.session.user.groups == ("dev",)
        (revocation,) = (await follow(store, before)).revocations
        assert (revocation.kind, revocation.value) == (RevocationKind.TOKEN, digest_of("t1").hex())
        assert revocation.owner == "ann"
        assert await store.find(digest_of("r1")) is not None

    async def test_a_spent_token_cannot_be_made_to_be_forgotten(self, store: TokenStore, clock: FakeClock) -> None:
        session = await renewable_session(store, clock)
        assert await store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[])
        assert await store.revoke(Revocation(RevocationKind.TOKEN, digest_of("r1").hex(), clock.now())) == 0
        assert await store.find(digest_of("r1")) is not None


@pytest.mark.asyncio
class RecordStoreContract:
    """Records of sign-ins in progress. Inherit from this class and provide the fixture `store`."""

    most_records: ClassVar[int] = MOST_RECORDS
    """Maximum number of records. Override it if the store under test has a smaller limit."""

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
        records = await asyncio.gather(*(store.take_record(digest_of("a")) for _ in range(20)))
        assert sorted(records, key=bool) == [None] * 19 + [b"x"]

    async def test_a_record_is_gone_the_moment_it_expires(self, store: RecordStore, clock: FakeClock) -> None:
        """L1: even before any sweep."""
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
        with pytest.raises(ValueError):  # noqa: PT011  # the message is the store's own
            await store.put_record(digest_of("b"), b"x" * (LARGEST_RECORD + 1), in_minutes(clock, 10))

    async def test_the_oldest_make_room_and_there_are_never_more(self, store: RecordStore, clock: FakeClock) -> None:
        """L1: ten thousand unfinished logins stay bounded, and the next one can still begin."""
        until = in_minutes(clock, 10)
        await store.put_record(digest_of("first"), b"x", until)
        await store.put_record(digest_of("second"), b"x", until)
        await asyncio.gather(
            *(store.put_record(digest_of(str(number)), b"x", until) for number in range(self.most_records - 1))
        )
        assert await store.find_record(digest_of("first")) is None
        assert await store.find_record(digest_of("second")) == b"x"
        assert await store.find_record(digest_of(str(self.most_records - 2))) == b"x"

    async def test_nothing_is_kept_or_found_once_it_is_closed(self, store: RecordStore, clock: FakeClock) -> None:
        closing: TokenStore = store  # type: ignore[assignment]  # every record store is a token store
        await closing.close()
        for question in (store.find_record(digest_of("a")), store.take_record(digest_of("a"))):
            with pytest.raises(ProviderError):
                await question
        with pytest.raises(ProviderError):
            await store.put_record(digest_of("a"), b"x", in_minutes(clock, 10))


class SharedRecordStoreContract(RecordStoreContract):
    """For stores that several processes share. Also requires the fixture `other`."""

    async def test_what_one_puts_the_other_takes_and_only_one_of_them(
        self, store: RecordStore, other: RecordStore, clock: FakeClock
    ) -> None:
        """L1: any worker can finish a login, and exactly one does."""
        await store.put_record(digest_of("a"), b"x", in_minutes(clock, 10))
        assert await other.find_record(digest_of("a")) == b"x"
        records = await asyncio.gather(*(each.take_record(digest_of("a")) for each in [store, other] * 5))
        assert sorted(records, key=bool) == [None] * 9 + [b"x"]


SEED = 20240


class SessionPagesContract:
    """Paged lists of sessions, for stores that have them."""

    async def test_pages_put_together_are_the_whole_list(self, store: TokenStore, clock: FakeClock) -> None:
        chance = random.Random(SEED)
        await _add_some(store, clock, chance, 60)
        whole = [session.id for session in await store.sessions()]
        assert len(whole) == 60
        for limit in (1, 7, 59, 60, 61):
            listed = await _all_pages(store, limit)
            assert sorted(listed) == sorted(whole), limit
            assert len(listed) == len(set(listed))
        times = {session.id: session.created_at for session in await store.sessions()}
        shown = [times[each] for each in await _all_pages(store, 7)]
        assert shown == sorted(shown, reverse=True), "the newest first"

    async def test_whoever_stays_is_listed_once_while_others_come_and_go(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        chance = random.Random(SEED + 1)
        stays = set(await _add_some(store, clock, chance, 40))
        listed: list[str] = []
        page, round_number = await _page(store, limit=5), 0
        while page:
            listed += [each.session.id for each in page]
            round_number += 1
            await _add_some(store, clock, chance, 3, prefix=f"new{round_number}-")
            # The session at the end of the page is gone when the next page is requested.
            ended = page[-1].session.id
            await store.revoke(Revocation(RevocationKind.SESSION, ended))
            page = await _page(store, after=page[-1].place, limit=5)
        assert len(listed) == len(set(listed))
        assert set(listed) == stays, "what begins later is newer, and so before the first page"

    async def test_pages_of_one_user_a_group_or_a_kind(self, store: TokenStore, clock: FakeClock) -> None:
        chance = random.Random(SEED + 2)
        await _add_some(store, clock, chance, 40)
        for search in (
            {"username": "ann"},
            {"group": "of bob"},
            {"username": "bob", "group": "all"},
            {"username": "bob", "group": "of ann"},
            {"kind": SessionKind.API_TOKEN},
            {"username": "ann", "kind": SessionKind.SIGN_IN},
        ):
            whole = await store.sessions(**search)
            listed = await _all_pages(store, 3, **search)
            assert sorted(listed) == sorted(session.id for session in whole), search
        with_all = await _page(store, limit=40)
        assert {each.session.id: each.session for each in with_all} == {
            each.id: each for each in await store.sessions()
        }

    async def test_what_has_expired_is_on_no_page(self, store: TokenStore, clock: FakeClock) -> None:
        short = make_session(clock, "short", expires_at=clock.now())
        await store.add(make_session(clock, "long"), [])
        await store.add(short, [])
        assert await _all_pages(store, 1) == ["long"]

    async def test_a_place_that_the_store_never_gave_is_refused(self, store: TokenStore) -> None:
        for place in ("x", "1", ":", "1:", "x:s1", "1.5:s1", f"{'9' * 40}:s1", "1:" + "s" * 9999):
            with case(place), pytest.raises(ValueError, match="no place"):
                await _page(store, after=place)


async def _page(store: TokenStore, **search: object) -> list[ListedSession]:
    paging = cast(PagesSessions, store)
    return list(await paging.page_sessions(**search))  # type: ignore[arg-type]


async def _all_pages(store: TokenStore, limit: int, **search: object) -> list[str]:
    listed: list[str] = []
    page = await _page(store, limit=limit, **search)
    while page:
        assert len(page) <= limit
        listed += [each.session.id for each in page]
        page = await _page(store, limit=limit, after=page[-1].place, **search)
    return listed


async def _add_some(
    store: TokenStore, clock: FakeClock, chance: random.Random, number: int, prefix: str = "s"
) -> list[str]:
    """Add sessions of two users and two kinds, some created at the same moment. Return their ids."""
    ids = [f"{prefix}{each}" for each in range(number)]
    chance.shuffle(ids)
    for session_id in ids:
        await store.add(_session(clock, session_id, chance), [])
        clock.advance(chance.choice((0, 0, 0.001, 1)))
    clock.advance(1)
    return ids


def _session(clock: FakeClock, session_id: str, chance: random.Random) -> Session:
    kind = chance.choice((SessionKind.SIGN_IN, SessionKind.API_TOKEN))
    name = f"name of {session_id}" if kind is SessionKind.API_TOKEN else ""
    username = chance.choice(("ann", "bob"))
    return of_user(make_session(clock, session_id, kind=kind, name=name), username, "all", f"of {username}")
