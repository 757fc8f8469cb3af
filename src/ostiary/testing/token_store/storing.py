"""A token store keeps what it is given, until it expires. Part of `TokenStoreContract`."""

from __future__ import annotations

import asyncio
from datetime import timedelta, timezone

import pytest

from ostiary.errors import ProviderError
from ostiary.interfaces.token_store import (
    Revocation,
    RevocationKind,
    TokenKind,
    TokenStore,
)
from ostiary.model import UserInfo
from ostiary.testing.clock import FakeClock
from ostiary.testing.token_store.samples import ODD_NAMES, case, digest_of, make_session, make_token, of_user


class StoringContract:
    """Sessions and tokens: added, found, listed, expired, swept; and the end of a store."""

    # --- what goes in comes out ---

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
                with pytest.raises(ValueError):  # noqa: PT011  # the words are the store's own
                    await store.add(session, [make_token(session)])
                with pytest.raises(ValueError):  # noqa: PT011  # the words are the store's own
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

    # --- the end ---

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
