"""What `OriginStore` promises: sessions are found and ended by the sign-in that they came from.

Inherit from it beside the suite of token stores. It needs the fixtures `store` and `clock`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostiary.core.abilities import ability
from ostiary.errors import LoginRefused
from ostiary.interfaces.token_store import OriginStore, Revocation, RevocationKind, Session, TokenStore
from ostiary.testing.clock import FakeClock
from ostiary.testing.token_store.samples import (
    contents,
    digest_of,
    head,
    make_session,
    make_token,
    of_user,
    renewable_session,
)

SIGN_IN, PERSON, OTHER = (digest_of(name).hex() for name in ("a sign-in", "a person", "another sign-in"))


@pytest.mark.asyncio
class OriginStoreContract:
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
        # Another sign-in of the same person is none of its business, and neither is a later one.
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
