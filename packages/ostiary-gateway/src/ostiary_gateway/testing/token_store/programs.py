"""Tokens of service accounts and clients, and scoped tokens. Part of `TokenStoreContract`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from ostiary.errors import ProviderError
from ostiary.testing import FakeClock
from ostiary_gateway.interfaces.token_store import (
    LARGEST_DELEGATION,
    Revocation,
    RevocationKind,
    SessionKind,
    TokenKind,
    TokenStore,
)
from ostiary_gateway.testing.token_store.samples import (
    ODD_NAMES,
    case,
    contents,
    digest_of,
    head,
    make_session,
    make_token,
    of_user,
    renewable_session,
)

DELEGATION = '[["get pods"],"an agent \u00e9\U0001d518"]'


class ProgramsContract:
    """Delegations, tokens added to a live session, sessions of every kind, and the time of last use."""

    # --- scoped tokens ---

    async def test_a_delegation_is_kept_with_its_token_alone(self, store: TokenStore, clock: FakeClock) -> None:
        session = make_session(clock)
        whole, less = make_token(session), replace(make_token(session, "t2"), delegation=DELEGATION)
        await store.add(session, [whole, less])
        for token in (whole, less):
            entry = await store.find(token.digest)
            assert entry is not None
            assert (entry.token, entry.session) == (token, session)

    async def test_any_text_can_be_a_delegation(self, store: TokenStore, clock: FakeClock) -> None:
        for number, text in enumerate([*ODD_NAMES[:-1], " ", "\n", "x" * LARGEST_DELEGATION]):
            with case(text):
                session = make_session(clock, f"id with spaces {number}")
                token = replace(make_token(session, f"t{number}"), delegation=text)
                await store.add(session, [token])
                entry = await store.find(token.digest)
                assert entry is not None
                assert (entry.token.delegation, entry.session) == (text, session)

    async def test_a_delegation_that_cannot_be_kept_is_refused(self, store: TokenStore, clock: FakeClock) -> None:
        for number, text in enumerate(["\ud800", "a\0b", "x" * (LARGEST_DELEGATION + 1)]):
            with case(text):
                session = make_session(clock, f"s{number}")
                token = replace(make_token(session), delegation=text)
                with pytest.raises(ValueError):  # noqa: PT011  # the message is the store's own
                    await store.add(session, [token])
                assert await store.session(session.id) is None
                await store.add(session, [])
                with pytest.raises(ValueError):  # noqa: PT011  # the message is the store's own
                    await store.add_tokens(session.id, [token])
                assert await store.count() == 0

    async def test_only_an_access_token_has_a_delegation(self, store: TokenStore, clock: FakeClock) -> None:
        """A refresh with such a token would return the full session."""
        session = make_session(clock)
        token = replace(make_token(session, kind=TokenKind.RENEWAL), delegation=DELEGATION)
        with pytest.raises(ValueError):  # noqa: PT011  # the message is the store's own
            await store.add(session, [token])

    async def test_a_renewal_can_bring_a_token_with_a_delegation(self, store: TokenStore, clock: FakeClock) -> None:
        session = await renewable_session(store, clock)
        less = replace(make_token(session, "t2"), delegation=DELEGATION)
        assert await store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[less])
        entry = await store.find(digest_of("t2"))
        assert entry is not None
        assert entry.token == less

    async def test_when_the_user_changes_tokens_with_a_delegation_end_too(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = await renewable_session(store, clock)
        assert await store.add_tokens("s1", [replace(make_token(session, "t2"), delegation=DELEGATION)])
        start = await head(store)
        changed = of_user(session, "ann", "dev")
        assert await store.renew(digest_of("r1"), at=clock.now(), session=changed, tokens=[])
        assert await store.find(digest_of("t2")) is None
        ended = {value for kind, value, _, _ in contents(await store.revocations_after(start))}
        assert ended == {digest_of("t1").hex(), digest_of("t2").hex()}

    # --- adding tokens to a session ---

    async def test_tokens_are_added_and_the_session_stays_as_it_is(self, store: TokenStore, clock: FakeClock) -> None:
        session = await renewable_session(store, clock)
        changed = of_user(session, "ann", "dev")
        assert await store.renew(digest_of("r1"), at=clock.now(), session=changed, tokens=[])
        less = replace(make_token(session, "t2"), delegation=DELEGATION)
        assert await store.add_tokens("s1", [less, make_token(session, "t3")])
        entry = await store.find(digest_of("t2"))
        assert entry is not None
        assert (entry.token, entry.session) == (less, changed)
        assert await store.find(digest_of("t3")) is not None
        assert await store.sessions(group="ops") == []

    async def test_nothing_is_added_under_a_session_that_is_not_alive(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock, expires_at=clock.now() + timedelta(minutes=1))
        assert not await store.add_tokens("s1", [make_token(session)])
        await store.add(session, [])
        clock.advance(minutes=1)
        assert not await store.add_tokens("s1", [make_token(session)])
        await store.sweep()
        assert await store.count() == 0

    async def test_nothing_is_added_under_a_session_that_was_revoked(self, store: TokenStore, clock: FakeClock) -> None:
        # The last one ends all sessions.
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
                await store.add(session, [make_token(session, kind.value)])
                assert await store.revoke(Revocation(kind, value)) == 1
                assert not await store.add_tokens(session.id, [make_token(session, f"{kind.value} more")])
                assert await store.find(digest_of(f"{kind.value} more")) is None
                assert await store.count() == 0

    async def test_tokens_are_added_after_revocations_that_are_long_forgotten(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock)
        await store.add(session, [])
        await store.revoke(Revocation(RevocationKind.USER, "bob"))
        clock.advance(hours=2)
        await store.sweep()
        assert await store.add_tokens("s1", [make_token(session, minutes=180)])
        assert await store.find(digest_of("t1")) is not None

    async def test_a_token_of_another_session_is_not_taken_over(self, store: TokenStore, clock: FakeClock) -> None:
        session, second = make_session(clock), make_session(clock, "s2")
        await store.add(session, [make_token(session)])
        await store.add(second, [])
        with pytest.raises(ProviderError):
            await store.add_tokens("s2", [make_token(second, "t2"), make_token(second, "t1")])
        assert await store.find(digest_of("t2")) is None
        entry = await store.find(digest_of("t1"))
        assert entry is not None
        assert entry.session == session

    async def test_a_revocation_and_tokens_that_come_at_once_leave_nothing(
        self, store: TokenStore, clock: FakeClock
    ) -> None:
        session = make_session(clock)
        await store.add(session, [])
        await asyncio.gather(
            *(store.add_tokens("s1", [make_token(session, f"a{number}")]) for number in range(10)),
            store.revoke(Revocation(RevocationKind.USER, "ann")),
            *(store.add_tokens("s1", [make_token(session, f"b{number}")]) for number in range(10)),
        )
        for number in range(10):
            assert await store.find(digest_of(f"a{number}")) is None
            assert await store.find(digest_of(f"b{number}")) is None
        assert await store.count() == 0

    # --- kinds and names ---

    async def test_sessions_are_counted_and_listed_by_kind(self, store: TokenStore, clock: FakeClock) -> None:
        sessions = [
            make_session(clock, "s1"),
            make_session(clock, "s2", kind=SessionKind.EXCHANGE),
            make_session(clock, "s3", kind=SessionKind.EXCHANGE, expires_at=clock.now() + timedelta(minutes=1)),
            make_session(clock, "s4", kind=SessionKind.API_TOKEN, name="deploy \u00e9"),
            of_user(make_session(clock, "s5", kind=SessionKind.EXCHANGE), "bob"),
        ]
        for session in sessions:
            await store.add(session, [make_token(session, session.id)])
            assert await store.session(session.id) == session
        counts = [await store.count_sessions("ann", kind) for kind in SessionKind]
        assert counts == [1, 2, 1]
        assert await store.sessions(username="ann", kind=SessionKind.API_TOKEN) == [sessions[3]]
        assert {each.id for each in await store.sessions(kind=SessionKind.EXCHANGE)} == {"s2", "s3", "s5"}
        assert await store.sessions(kind=SessionKind.EXCHANGE, group="nobody") == []
        clock.advance(minutes=1)
        assert await store.count_sessions("ann", SessionKind.EXCHANGE) == 1
        assert await store.count_sessions("nobody", SessionKind.EXCHANGE) == 0

    async def test_those_that_were_revoked_are_no_longer_counted(self, store: TokenStore, clock: FakeClock) -> None:
        for number in range(3):
            await store.add(make_session(clock, f"s{number}", kind=SessionKind.EXCHANGE), [])
        await store.revoke(Revocation(RevocationKind.SESSION, "s1"))
        assert await store.count_sessions("ann", SessionKind.EXCHANGE) == 2
        await store.revoke(Revocation(RevocationKind.USER, "ann"))
        assert await store.count_sessions("ann", SessionKind.EXCHANGE) == 0

    # --- last used ---

    async def test_the_last_use_is_written_down(self, store: TokenStore, clock: FakeClock) -> None:
        for name in ("s1", "s2"):
            session = make_session(clock, name)
            await store.add(session, [make_token(session, name)])
        assert await _last_used(store, "s1") is None
        clock.advance(60)
        noted = clock.now()
        await store.note_use({"s1": noted, "nobody": noted})
        await store.note_use({"s1": noted - timedelta(seconds=1)})
        await store.note_use({})
        assert await _last_used(store, "s1") == noted
        assert await _last_used(store, "s2") is None
        entry = await store.find(digest_of("s1"))
        assert entry is not None
        assert entry.session.last_used_at == noted
        assert await store.session("nobody") is None

    async def test_the_last_use_stays_when_the_session_is_replaced(self, store: TokenStore, clock: FakeClock) -> None:
        session = await renewable_session(store, clock)
        noted = clock.now()
        await store.note_use({"s1": noted})
        await store.add(session, [])
        assert await store.renew(digest_of("r1"), at=clock.now(), session=session, tokens=[])
        assert await _last_used(store, "s1") == noted

    async def test_the_last_use_goes_back_with_the_clock(self, store: TokenStore, clock: FakeClock) -> None:
        await store.add(make_session(clock), [])
        await store.note_use({"s1": clock.now()})
        await store.heartbeat()
        clock.set_back(hours=1)
        await store.heartbeat()
        assert await _last_used(store, "s1") == clock.now()


async def _last_used(store: TokenStore, session_id: str) -> datetime | None:
    session = await store.session(session_id)
    assert session is not None
    return session.last_used_at
