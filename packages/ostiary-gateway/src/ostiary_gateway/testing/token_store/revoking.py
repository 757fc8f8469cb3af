"""Revocations, and clocks that are set back. Part of `TokenStoreContract`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product

import pytest

from ostiary.errors import LoginRefused
from ostiary.testing import FakeClock
from ostiary_gateway.interfaces.token_store import Revocation, RevocationBatch, RevocationKind, TokenStore
from ostiary_gateway.testing.token_store.samples import (
    ODD_NAMES,
    TIME_LIMIT_SECONDS,
    case,
    digest_of,
    follow,
    head,
    in_minutes,
    make_session,
    make_token,
    of_user,
)


class RevokingContract:
    """Revocations: what they end, the active revocations that remain, and how they are followed."""

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

    async def test_a_token_is_revoked_by_the_hex_of_its_digest_only(self, store: TokenStore, clock: FakeClock) -> None:
        for value in ("", "zz", "ab", digest_of("t1").hex().upper()):
            with case(value), pytest.raises(ValueError):  # noqa: PT011  # the message is the store's own
                await store.revoke(Revocation(RevocationKind.TOKEN, value, clock.now()))

    async def test_revoking_a_session_ends_all_its_tokens_and_no_others(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        """S65."""
        first, second = make_session(clock, "s1"), make_session(clock, "s2")
        await store.add(first, [make_token(first, "a"), make_token(first, "b")])
        await store.add(second, [make_token(second, "c")])
        assert await store.revoke(Revocation(RevocationKind.SESSION, "s1", clock.now())) == 1
        assert await store.find(digest_of("a")) is None
        assert await store.find(digest_of("b")) is None
        assert await store.find(digest_of("c")) is not None
        assert await store.session("s1") is None

    async def test_a_user_is_revoked_by_the_exact_name(self, store: TokenStore, clock: FakeClock) -> None:
        """S14, S64: a user is signed out immediately, however long the session was to last."""
        for name in ODD_NAMES:
            for username in (name, name + "x"):
                session = of_user(make_session(clock, f"of {username}"), username)
                await store.add(session, [make_token(session, session.id)])
        left = {f"of {name}{more}" for name in ODD_NAMES for more in ("", "x")}
        for name in ODD_NAMES:
            with case(name):
                assert await store.revoke(Revocation(RevocationKind.USER, name, clock.now())) == 1
                left.remove(f"of {name}")
                assert {session.id for session in await store.sessions()} == left

    async def test_a_group_is_revoked_by_the_exact_name(self, store: TokenStore, clock: FakeClock) -> None:
        """S14, S64: members of the group must sign in again, and so lose a membership that was removed."""
        for name in ODD_NAMES:
            inside = of_user(make_session(clock, f"in {name}"), "ann", "z", name)
            outside = of_user(make_session(clock, f"out {name}"), "bob", name + ",z", "z")
            for session in (inside, outside):
                await store.add(session, [make_token(session, session.id)])
        left = {f"{where} {name}" for name in ODD_NAMES for where in ("in", "out")}
        for name in ODD_NAMES:
            with case(name):
                assert await store.revoke(Revocation(RevocationKind.GROUP, name, clock.now())) == 1
                left.remove(f"in {name}")
                assert {session.id for session in await store.sessions()} == left
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

    async def test_a_revocation_that_was_quicker_than_the_session_still_ends_it(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        """T3: the sign-in was in progress, and its worker does not know what an operator did meanwhile."""
        # The last one concerns everyone.
        for kind, value in (
            (RevocationKind.SESSION, "s1"),
            (RevocationKind.USER, "bob"),
            (RevocationKind.GROUP, "guests"),
            (RevocationKind.BEFORE, ""),
        ):
            with case(kind):
                username = value if kind is RevocationKind.USER else "ann"
                group = value if kind is RevocationKind.GROUP else "ops"
                session = of_user(make_session(clock, value or "s2"), username, group)
                clock.advance(2)
                await store.revoke(Revocation(kind, value, clock.now()))
                with pytest.raises(LoginRefused):
                    await store.add(session, [make_token(session)])
                assert await store.find(digest_of("t1")) is None
                assert await store.session(session.id) is None

    async def test_a_revocation_that_lies_ahead_is_refused_and_locks_nobody_out(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        now, before = clock.now(), await head(store)
        times = (
            now + timedelta(minutes=1, seconds=1),
            now + timedelta(days=365),
            datetime.max.replace(tzinfo=now.tzinfo),
        )
        for kind, at in product(RevocationKind, times):
            value = digest_of("t1").hex() if kind is RevocationKind.TOKEN else ""
            with case(kind, at):
                with pytest.raises(ValueError):  # noqa: PT011  # the message is the store's own
                    await store.revoke(Revocation(kind, value, at))
                assert await head(store) == before
                await store.add(make_session(clock, f"{kind.value} {at}"), [])

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

    # --- active revocations ---

    async def test_a_mark_can_be_taken_back(self, store: TokenStore, clock: FakeClock) -> None:
        """Sign-ins that began before the revocation are accepted again. What has ended stays ended."""
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

    # --- following revocations ---

    async def test_revocations_have_numbers_without_gaps_and_are_told_in_order(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        await store.revoke(Revocation(RevocationKind.USER, "before"))
        start = await head(store)
        revocations = [
            Revocation(RevocationKind.USER, "ann", None, "an operator"),
            Revocation(RevocationKind.GROUP, "a,b|c", clock.now()),
            Revocation(RevocationKind.SESSION, "s1", owner="ann|\u00e9"),
            Revocation(RevocationKind.BEFORE, "", clock.now() - timedelta(days=1)),
        ]
        for revocation in revocations:
            await store.revoke(revocation)
        batch = await store.revocations_after(start)
        assert [replace(each, sequence=0, recorded_at=None) for each in batch.revocations] == revocations
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


class ClockSetBackContract:
    """A token store whose clock is set back. Part of `TokenStoreContract`.

    Stored data keeps its intended lifetime, and what has ended stays ended.
    """

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
        entry = await store.find(digest_of("t1"))
        assert entry is not None
        assert entry.token.expires_at == in_minutes(clock, 4)
        assert entry.session.expires_at == in_minutes(clock, 9)
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
