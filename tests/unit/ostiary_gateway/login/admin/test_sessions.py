"""All sessions, page by page: every one once, found by what is searched for, and never all at once."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Session, SessionKind, TokenStore
from ostiary_gateway.login.admin import sessions as session_lists
from ostiary_gateway.login.admin.searches import SessionSearch
from ostiary_gateway.login.admin.sessions import ON_A_PAGE, SessionLists
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.login.admin.administered import Administered, next_page
from tests.unit.ostiary_gateway.login.pages.safe_page import assert_is_safe_page
from tests.unit.ostiary_gateway.signing_in import Make


def session(clock: FakeClock, number: int, **changes: Any) -> Session:
    now = clock.now()
    made = Session(f"s{number}", UserInfo(f"user{number}"), "staff", now, now + timedelta(hours=9), client="kubectl")
    return replace(made, **changes)


async def add_many(store: TokenStore, clock: FakeClock, number: int, **changes: Any) -> None:
    for each in range(number):
        await store.add(session(clock, each, **changes), [])
        if each % 3:
            clock.advance(1)


async def test_pages_lead_to_every_session_once_while_others_sign_in(make: Make, clock: FakeClock) -> None:
    area = Administered(make, clock)
    await area.root.sign_in()
    await add_many(area.gateway.store, clock, 2 * ON_A_PAGE + 7)
    target: str | None = "/auth/admin"
    listed: list[str] = []
    pages = 0
    while target:
        page = await area.page(target)
        listed += re.findall(r'name="session" value="(s\d+)"', page)
        await area.gateway.store.add(session(clock, 1000 + pages), [])
        pages, target = pages + 1, next_page(page)
    assert pages == 3
    assert len(listed) == len(set(listed))
    assert set(listed) == {f"s{number}" for number in range(2 * ON_A_PAGE + 7)}
    assert "First page" in page


async def test_search_by_user_group_kind_text_and_time(make: Make, clock: FakeClock) -> None:
    area = Administered(make, clock)
    await area.root.sign_in()
    store = area.gateway.store
    clock.advance(60)
    await store.add(session(clock, 1, user=UserInfo("ann", groups=("dev",)), provider="corp"), [])
    clock.advance(60)
    await store.add(session(clock, 2, kind=SessionKind.API_TOKEN, name="backup job"), [])
    for query, expected in (
        ("?user=ann", ["s1"]),
        ("?user=an", []),
        ("?group=dev", ["s1"]),
        ("?kind=api-token", ["s2"]),
        ("?text=BACKUP", ["s2"]),
        ("?text=corp&kind=sign-in", ["s1"]),
        ("?since=2026-01-01T00:01:30", ["s2"]),
        ("?since=2026-01-01T00:00:30&until=2026-01-01T00:01:30Z", ["s1"]),
    ):
        page = await area.page(f"/auth/admin{query}")
        assert re.findall(r'name="session" value="(s\d+)"', page) == expected, query
        assert "<details open>" in page


@pytest.mark.parametrize("query", ["?since=%3Cb%3E", "?kind=x", "?user=a&user=b", "?after=x", "?text=" + "x" * 501])
async def test_what_cannot_be_searched_for_is_told(make: Make, clock: FakeClock, query: str) -> None:
    area = Administered(make, clock)
    await area.root.sign_in()
    answer = await area.root.get(f"/auth/admin{query}")
    assert answer.status == 400
    assert_is_safe_page(answer)


async def test_a_search_that_finds_little_is_bounded_and_goes_on(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_lists, "AT_ONCE", 10)
    monkeypatch.setattr(session_lists, "MOST_LOOKED_AT", 30)
    store = MemoryTokenStore(clock=clock)
    await add_many(store, clock, 70)
    lists, search = SessionLists(store), SessionSearch({"text": "s3"})
    found: list[str] = []
    after, pages = "", 0
    while True:
        page = await lists.find(search, after=after, limit=5)
        found += [each.id for each in page.sessions]
        pages, after = pages + 1, page.after
        if not after:
            break
        assert page.is_cut or len(page.sessions) == 5
    assert pages > 2
    assert sorted(found) == sorted(["s3", *(f"s3{number}" for number in range(10))])


async def test_a_store_that_cannot_continue_its_list_shows_the_newest(clock: FakeClock) -> None:
    class Plain(MemoryTokenStore):
        page_sessions = None  # type: ignore[assignment]

    store = Plain(clock=clock)
    await add_many(store, clock, 3)
    page = await SessionLists(store).find(SessionSearch({}), limit=2)
    assert [each.id for each in page.sessions] == ["s2", "s1", "s0"] or len(page.sessions) == 3
    assert not page.is_newest_only
