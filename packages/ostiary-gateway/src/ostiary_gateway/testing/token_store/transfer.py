"""Conformance suites for token stores with portable contents, and with origins of sessions.

`check_move` is for tests that move between two different stores; `fill` creates contents with everything that a store
can hold. See `ostiary_gateway.interfaces.store_capabilities`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary.testing import FakeClock
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.store_capabilities import PortableStore, StoredLog, StoredSession
from ostiary_gateway.interfaces.token_store import (
    OriginStore,
    Revocation,
    RevocationKind,
    Session,
    SessionKind,
    TokenKind,
    TokenRecord,
    TokenStore,
)
from ostiary_gateway.stores.transfer import MovableStore
from ostiary_gateway.testing.token_store.samples import (
    ODD_NAMES,
    contents,
    digest_of,
    head,
    make_session,
    make_token,
    of_user,
    renewable_session,
)

# In order of code points, which differs from alphabetical order.
IDS = ("-a", "0", "B", "Z", "_", "a", "b", "~", "\u00e9", "\u4e00", "\U0001d518")


async def export_all(store: PortableStore, *, limit: int = 1000) -> list[StoredSession]:
    """Return every session, read in pages of *limit*, with its tokens sorted by digest."""
    sessions: list[StoredSession] = []
    while page := await store.export_sessions(sessions[-1].session.id if sessions else "", limit):
        assert len(page) <= limit
        sessions += [replace(each, tokens=_by_digest(each.tokens)) for each in page]
    return sessions


async def move(source: PortableStore, target: PortableStore, *, limit: int = 3) -> None:
    await target.import_log(await source.export_log())
    after = ""
    while page := await source.export_sessions(after, limit):
        await target.import_sessions(page)
        after = page[-1].session.id


async def fill(store: TokenStore, clock: FakeClock) -> None:
    """Add sessions and tokens of every kind, some revoked, used, pruned or lifted, and set the clock back."""
    await _begin(store, clock, "forgotten", of_user(make_session(clock), "gone"))
    await _begin(store, clock, "long", _odd_session(clock))
    await store.revoke(Revocation(RevocationKind.USER, "gone", by="long ago"))
    clock.advance(hours=2)
    await store.sweep()
    await _begin(store, clock, "ended", of_user(make_session(clock), "bob", "ops"))
    await _begin(store, clock, "expired", make_session(clock, expires_at=clock.now() + timedelta(minutes=1)))
    await _begin(store, clock, "renewed", replace(make_session(clock), sealed="sealed text"))
    await _begin(store, clock, "token-revoked", make_session(clock))
    clock.advance(minutes=1)
    renewed = await store.session("renewed")
    assert renewed is not None
    new = TokenRecord(digest_of("renewed new"), "renewed", clock.now(), renewed.expires_at, TokenKind.RENEWAL)
    assert await store.renew(digest_of("renewed renewal"), at=clock.now(), session=renewed, tokens=[new])
    await store.revoke(Revocation(RevocationKind.USER, "bob", by="root"))
    await store.revoke(Revocation(RevocationKind.TOKEN, digest_of("token-revoked access").hex()))
    await store.revoke(Revocation(RevocationKind.GROUP, "a,b|c", clock.now() - timedelta(days=3)))
    await store.revoke(Revocation(RevocationKind.USER, "forgiven"))
    assert await store.undo(await head(store))
    clock.set_back(minutes=10)
    await store.heartbeat()
    await store.revoke(Revocation(RevocationKind.SESSION, "unknown", owner="somebody \u00e9"))
    clock.advance(1)
    # Fractions of a second must be stored too.
    clock.advance(0.123457)
    if ability(store, OriginStore) is not None:
        await store.revoke(Revocation(RevocationKind.ORIGIN, digest_of("an ended sign-in").hex(), owner="somebody"))
        last = make_session(clock, origins=(digest_of("a sign-in").hex(),), sealed_hint="\u00e9 hint")
    else:
        last = make_session(clock)
    await _begin(store, clock, "last", last)
    await store.note_use({"last": clock.now()})
    program = make_session(clock, "program", kind=SessionKind.API_TOKEN, name="deploy \u00e9")
    await store.add(program, [])
    assert await store.add_tokens("program", [replace(make_token(program, "narrowed"), delegation="less \u00e9")])


async def _begin(store: TokenStore, clock: FakeClock, name: str, session: Session) -> None:
    session = replace(session, id=name)
    minutes = (session.expires_at - clock.now()) / timedelta(minutes=1)
    kinds = (TokenKind.ACCESS, TokenKind.RENEWAL, TokenKind.BROWSER, TokenKind.APPLICATION)
    tokens = [make_token(session, f"{name} {kind.value}", minutes=minutes, kind=kind) for kind in kinds]
    await store.add(session, [*tokens, make_token(session, f"{name} short", minutes=1)])


def _odd_session(clock: FakeClock) -> Session:
    user = UserInfo("\u0130'; --", " uid ", ODD_NAMES, (("", ()), ("k/\u00e9", ("", *ODD_NAMES))))
    sources = tuple((name, "file") for name in ODD_NAMES)
    return replace(make_session(clock), user=user, sources=sources, client="", sealed="\u00e9 sealed")


def _by_digest(tokens: tuple[TokenRecord, ...]) -> tuple[TokenRecord, ...]:
    return tuple(sorted(tokens, key=lambda token: token.digest))


async def check_move(source: MovableStore, target: MovableStore) -> None:
    """Check that *target* has the contents of *source*, as far as they are accessible."""
    assert await target.export_log() == await source.export_log()
    sessions = await export_all(source)
    assert await export_all(target) == sessions
    # Comparing sessions does not compare these fields.
    assert await _not_compared(target) == await _not_compared(source)
    assert sessions, "nothing was moved"
    assert _by_id_and_time(await target.sessions()) == _by_id_and_time(await source.sessions())
    for stored in sessions:
        for token in stored.tokens:
            assert await target.find(token.digest) == await source.find(token.digest) is not None
    for number in range(await head(source) + 1):
        assert await target.revocations_after(number) == await source.revocations_after(number)
    assert await target.marks() == await source.marks()


def _by_id_and_time(sessions: list[Session]) -> tuple[dict[str, Session], list[datetime]]:
    """Return the sessions in a form that compares the order by time, newest first, but not among equal times."""
    return {session.id: session for session in sessions}, [session.created_at for session in sessions]


async def _not_compared(store: PortableStore) -> dict[str, tuple[int | None, datetime | None]]:
    sessions = [stored.session for stored in await export_all(store)]
    return {session.id: (session.sequence, session.last_used_at) for session in sessions}


@pytest.mark.asyncio
class PortableStoreContract:
    """Inherit from this class and provide the fixtures `store`, `clock`, and `empty`: a separate store of this kind."""

    # --- completeness ---

    async def test_everything_is_moved_in_pages_of_any_size(
        self, store: MovableStore, empty: MovableStore, clock: FakeClock
    ) -> None:
        await fill(store, clock)
        sessions = await export_all(store)
        assert [stored.session.id for stored in sessions] == ["last", "long", "program", "renewed", "token-revoked"]
        assert await export_all(store, limit=1) == await export_all(store, limit=2) == sessions
        await move(store, empty)
        await check_move(store, empty)

    async def test_ids_are_in_the_order_of_their_code_points(
        self, store: MovableStore, empty: MovableStore, clock: FakeClock
    ) -> None:
        for name in reversed(IDS):
            await store.add(make_session(clock, name), [])
        assert [stored.session.id for stored in await export_all(store, limit=2)] == list(IDS)
        assert [stored.session.id for stored in await store.export_sessions("Z", 3)] == ["_", "a", "b"]
        await empty.import_sessions(await store.export_sessions("", 1000))
        assert [stored.session.id for stored in await export_all(empty, limit=2)] == list(IDS)

    async def test_what_has_expired_stays_behind(self, store: MovableStore, clock: FakeClock) -> None:
        expired = make_session(clock, "expired", expires_at=clock.now() + timedelta(minutes=1))
        living = make_session(clock, "living")
        await store.add(expired, [make_token(expired, "t1")])
        await store.add(living, [make_token(living, "t2", minutes=1), make_token(living, "t3", minutes=2)])
        clock.advance(minutes=1)
        ((stored),) = await store.export_sessions("", 10)
        assert (stored.session, [token.digest for token in stored.tokens]) == (living, [digest_of("t3")])

    async def test_many_are_moved_at_once(self, store: MovableStore, empty: MovableStore, clock: FakeClock) -> None:
        sessions = [make_session(clock, f"{number:04}", sequence=0) for number in range(1200)]
        stored = [
            StoredSession(session, tuple(make_token(session, f"{session.id} {part}") for part in "abc"))
            for session in sessions
        ]
        await empty.import_sessions(stored)
        await empty.import_sessions([])
        assert await empty.count() == 3600
        assert [each.session for each in await empty.export_sessions("", 5000)] == sessions
        assert len((await empty.export_sessions("1198", 5000))[0].tokens) == 3

    # --- repetition ---

    async def test_moving_twice_is_harmless(self, store: MovableStore, empty: MovableStore, clock: FakeClock) -> None:
        await fill(store, clock)
        await move(store, empty)
        await move(store, empty)
        await check_move(store, empty)
        assert await empty.count() == sum(len(stored.tokens) for stored in await export_all(store))

    async def test_what_changed_meanwhile_takes_the_place_of_the_older(
        self, store: MovableStore, empty: MovableStore, clock: FakeClock
    ) -> None:
        session = make_session(clock, "s1", sequence=0)
        await empty.import_sessions([StoredSession(session, (make_token(session, "t1"), make_token(session, "t2")))])
        changed = replace(of_user(session, "bob", "new"), sequence=7, client="another")
        await empty.import_sessions([StoredSession(changed, (make_token(session, "t3"),))])
        ((stored),) = await export_all(empty)
        assert (stored.session, stored.session.sequence) == (changed, 7)
        assert [await empty.find(digest_of(name)) is not None for name in ("t1", "t2", "t3")] == [False, False, True]
        assert await empty.sessions(group="new") == await empty.sessions(username="bob") == [changed]
        assert await empty.sessions(group="dev") == await empty.sessions(username="ann") == []

    async def test_one_that_has_expired_ends_the_living_one(self, empty: MovableStore, clock: FakeClock) -> None:
        session = make_session(clock, "s1", sequence=0)
        await empty.import_sessions([StoredSession(session, (make_token(session),))])
        clock.advance(1)
        expired = replace(session, expires_at=session.created_at)
        await empty.import_sessions([StoredSession(expired, ()), StoredSession(replace(expired, id="s2"), ())])
        assert await empty.find(digest_of("t1")) is None
        assert [await empty.session(name) for name in ("s1", "s2")] == [None, None]
        assert await empty.sessions() == []
        assert await empty.export_sessions("", 10) == []
        await empty.sweep()
        assert await empty.count() == 0

    # --- revocations ---

    async def test_what_was_refused_stays_refused(
        self, store: MovableStore, empty: MovableStore, clock: FakeClock
    ) -> None:
        await fill(store, clock)
        await move(store, empty)
        for name in ("forgotten", "ended", "expired"):
            assert await empty.find(digest_of(f"{name} access")) is None
            assert await empty.session(name) is None
        assert await empty.find(digest_of("token-revoked access")) is None
        assert await empty.find(digest_of("token-revoked browser")) is not None
        spent_entry = await empty.find(digest_of("renewed renewal"))
        assert spent_entry is not None
        assert spent_entry.token.kind is TokenKind.SPENT
        renewal = spent_entry.session
        assert not await empty.renew(digest_of("renewed renewal"), at=clock.now(), session=renewal, tokens=[])
        assert await empty.renew(digest_of("renewed new"), at=clock.now(), session=renewal, tokens=[])

    async def test_a_sign_in_under_way_is_refused_as_it_would_have_been(
        self, store: MovableStore, empty: MovableStore, clock: FakeClock
    ) -> None:
        await store.revoke(Revocation(RevocationKind.USER, "forgotten"))
        clock.advance(hours=2)
        await store.sweep()
        start = await head(store)
        for name in ("ann", "forgiven"):
            await store.revoke(Revocation(RevocationKind.USER, name))
        await store.undo(start + 2)
        await move(store, empty)
        new_session = make_session(clock, sequence=start)
        with pytest.raises(LoginRefused):
            await empty.add(new_session, [])
        with pytest.raises(LoginRefused):
            await empty.add(of_user(replace(new_session, sequence=start - 1), "somebody"), [])
        await empty.add(of_user(new_session, "forgiven"), [])
        await empty.add(replace(new_session, id="s2", sequence=start + 2), [])

    async def test_revocations_go_on_with_the_next_number_and_end_what_was_moved(
        self, store: MovableStore, empty: MovableStore, clock: FakeClock
    ) -> None:
        await fill(store, clock)
        await move(store, empty)
        last = await head(store)
        assert await empty.revoke(Revocation(RevocationKind.GROUP, "dev", by="root")) == 4
        batch = await empty.revocations_after(last)
        assert ([each.sequence for each in batch.revocations], batch.complete) == ([last + 1], True)
        assert [session.id for session in await empty.sessions()] == ["long"]
        clock.advance(hours=2)
        await empty.sweep()
        assert await empty.marks() == []
        assert not (await empty.revocations_after(last)).complete

    async def test_a_log_that_is_further_is_not_replaced(
        self, store: MovableStore, empty: MovableStore, clock: FakeClock
    ) -> None:
        """The target is in use, and its followers would be set back."""
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        for name in ("bob", "eve"):
            await empty.revoke(Revocation(RevocationKind.USER, name))
        before = await empty.export_log()
        with pytest.raises(ProviderError):
            await empty.import_log(await store.export_log())
        assert await empty.export_log() == before
        await store.import_log(before)
        await store.import_log(before)
        assert await store.export_log() == before

    async def test_an_empty_log_is_moved(self, store: MovableStore, empty: MovableStore) -> None:
        assert await store.export_log() == StoredLog(0, 0)
        await empty.import_log(StoredLog(0, 0))
        await empty.import_log(StoredLog(5, 3))
        assert await empty.export_log() == StoredLog(5, 3)
        assert await empty.revoke(Revocation(RevocationKind.USER, "ann")) == 0
        assert await head(empty) == 6

    async def test_nothing_is_moved_once_it_is_closed(self, store: MovableStore) -> None:
        await store.close()
        for work in (
            store.export_log(),
            store.export_sessions("", 1),
            store.import_log(StoredLog(0, 0)),
            store.import_sessions([]),
        ):
            with pytest.raises(ProviderError):
                await work


# Sessions are found and ended by the sign-in that they came from (`OriginStore`). Inherit in addition to the suite of
# token stores. Requires the fixtures `store` and `clock`.

SIGN_IN, PERSON, OTHER = (digest_of(name).hex() for name in ("a sign-in", "a person", "another sign-in"))


@pytest.mark.asyncio
class OriginStoreContract:
    """Origins of sessions, for stores that record them."""

    async def test_it_says_that_it_keeps_origins(self, store: TokenStore) -> None:
        assert ability(store, OriginStore) is not None, "it has the method sessions_from"

    async def test_origins_and_hint_come_back_as_they_went_in(self, store: TokenStore, clock: FakeClock) -> None:
        session = _from(clock, "s1", SIGN_IN, PERSON, hint="sealed \u00e9 text")
        await store.add(session, [make_token(session)])
        entry = await store.find(digest_of("t1"))
        assert entry is not None
        assert entry.session == session
        assert (entry.session.origins, entry.session.sealed_hint) == ((SIGN_IN, PERSON), "sealed \u00e9 text")
        assert entry.session.user.groups == session.user.groups, "origins are no groups"

    async def test_sessions_are_found_by_their_origin(self, store: TokenStore, clock: FakeClock) -> None:
        await _add(store, _from(clock, "s1", SIGN_IN, PERSON), _from(clock, "s2", OTHER, PERSON), _from(clock, "s3"))
        assert {each.id for each in await _asking(store).sessions_from(PERSON)} == {"s1", "s2"}
        assert [each.id for each in await _asking(store).sessions_from(OTHER)] == ["s2"]
        assert len(await _asking(store).sessions_from(PERSON, limit=1)) == 1
        assert await _asking(store).sessions_from(digest_of("unknown").hex()) == []

    async def test_an_expired_session_is_not_found_by_its_origin(self, store: TokenStore, clock: FakeClock) -> None:
        await _add(store, _from(clock, "s1", SIGN_IN))
        clock.advance(hours=24)
        assert await _asking(store).sessions_from(SIGN_IN) == []

    async def test_an_origin_ends_all_sessions_that_came_from_it_and_no_others(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        ended = [_from(clock, "s1", SIGN_IN, PERSON), of_user(_from(clock, "s2", SIGN_IN), "renamed", "x")]
        await _add(store, *ended, _from(clock, "s3", OTHER, PERSON), _from(clock, "s4"))
        assert await store.revoke(Revocation(RevocationKind.ORIGIN, SIGN_IN)) == 2
        assert {each.id for each in await store.sessions()} == {"s3", "s4"}
        assert await store.find(digest_of("s1")) is None
        assert await store.find(digest_of("s3")) is not None
        assert await _asking(store).sessions_from(SIGN_IN) == []

    async def test_a_group_with_the_name_of_an_origin_ends_no_session_of_it(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        await _add(store, _from(clock, "s1", SIGN_IN))
        assert await store.revoke(Revocation(RevocationKind.GROUP, SIGN_IN)) == 0
        await _add(store, replace(of_user(_from(clock, "s2"), "ann", SIGN_IN), sequence=await head(store)))
        assert await store.revoke(Revocation(RevocationKind.ORIGIN, SIGN_IN)) == 1
        assert [each.id for each in await store.sessions()] == ["s2"]

    async def test_it_is_told_to_those_who_follow(self, store: TokenStore) -> None:
        before = await head(store)
        await store.revoke(Revocation(RevocationKind.ORIGIN, SIGN_IN, by="staff", owner="ann"))
        batch = await store.revocations_after(before)
        assert contents(batch) == [(RevocationKind.ORIGIN, SIGN_IN, None, "staff")]
        assert [each.owner for each in batch.revocations] == ["ann"]
        assert [(each.kind, each.value) for each in await store.marks()] == [(RevocationKind.ORIGIN, SIGN_IN)]

    async def test_what_is_no_digest_is_refused(self, store: TokenStore) -> None:
        for value in ("", "sid-1", SIGN_IN.upper(), SIGN_IN[:-1]):
            with pytest.raises(ValueError, match="digest"):
                await store.revoke(Revocation(RevocationKind.ORIGIN, value))

    async def test_a_logout_during_the_sign_in_refuses_it(self, store: TokenStore, clock: FakeClock) -> None:
        began = await head(store)
        await store.revoke(Revocation(RevocationKind.ORIGIN, SIGN_IN))
        with pytest.raises(LoginRefused):
            await store.add(replace(_from(clock, "s1", SIGN_IN, PERSON), sequence=began), [])
        # Another sign-in of the same user is unaffected, and so is a later one.
        await _add(store, replace(_from(clock, "s2", OTHER, PERSON), sequence=began))
        await _add(store, replace(_from(clock, "s3", SIGN_IN, PERSON), sequence=await head(store)))

    async def test_a_logout_during_a_renewal_refuses_it(self, store: TokenStore, clock: FakeClock) -> None:
        session = await renewable_session(store, clock)
        since = await head(store)
        await store.revoke(Revocation(RevocationKind.ORIGIN, SIGN_IN))
        renewed, token = replace(session, origins=(SIGN_IN,)), make_token(session, "t2")
        assert not await store.renew(digest_of("r1"), at=clock.now(), session=renewed, tokens=[token], since=since)

    async def test_a_renewed_session_still_ends_by_its_origin(self, store: TokenStore, clock: FakeClock) -> None:
        session = replace(await renewable_session(store, clock), origins=(SIGN_IN,))
        await store.add(session, [])
        user = replace(session.user, groups=("other",))
        renewed, tokens = replace(session, user=user), [make_token(session, "t2")]
        since = await head(store)
        assert await store.renew(digest_of("r1"), at=clock.now(), session=renewed, tokens=tokens, since=since)
        assert await store.revoke(Revocation(RevocationKind.ORIGIN, SIGN_IN)) == 1
        assert await store.find(digest_of("t2")) is None

    async def test_a_session_that_is_replaced_is_found_by_its_new_origin_alone(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        await _add(store, _from(clock, "s1", SIGN_IN))
        await store.add(_from(clock, "s1", OTHER), [])
        assert await _asking(store).sessions_from(SIGN_IN) == []
        assert await store.revoke(Revocation(RevocationKind.ORIGIN, OTHER)) == 1


def _from(clock: FakeClock, session_id: str, *origins: str, hint: str = "") -> Session:
    return make_session(clock, session_id, origins=origins, sealed_hint=hint)


async def _add(store: TokenStore, *sessions: Session) -> None:
    for session in sessions:
        await store.add(session, [make_token(session, session.id)])


def _asking(store: TokenStore) -> OriginStore:
    asking = ability(store, OriginStore)
    assert asking is not None
    return asking
