"""The suite for token stores that list their sessions page by page. A part of `ostiary.testing.token_store`."""

from __future__ import annotations

import random
from typing import cast

import pytest

from ostiary.interfaces.store_abilities.session_pages import ListedSession, PagesSessions
from ostiary.interfaces.token_store import Revocation, RevocationKind, Session, SessionKind, TokenStore
from ostiary.testing.clock import FakeClock
from ostiary.testing.token_store.samples import case, make_session, of_user

SEED = 20240


class SessionPagesContract:
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
            # The one at the end of the page is gone when the next one is asked for.
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
    """Sessions of two users and two kinds, some of them of the same moment; returns their ids."""
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
