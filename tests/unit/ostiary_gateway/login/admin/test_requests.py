"""Decisions and denied requests in tables: searched, sorted, page by page."""

from __future__ import annotations

import re

import pytest

from ostiary.model import Attributes, UserInfo
from ostiary_gateway.login.admin.requests import ON_A_PAGE
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.login.admin.administered import DENIED, Administered, next_page, request_info
from tests.unit.ostiary_gateway.login.pages.safe_page import assert_is_safe_page
from tests.unit.ostiary_gateway.signing_in import Make, text_of

IDS = re.compile(r'href="/auth/admin/refusals\?id=([^"&]+)"')


async def test_decisions_are_recorded_from_the_first_look_on(make: Make, clock: FakeClock) -> None:
    area = Administered(make, clock)
    await area.root.sign_in()
    assert not area.recent.is_watched
    empty = await area.root.get("/auth/admin/decisions")
    assert_is_safe_page(empty, connects=True)
    area.decide("d1", "<ann>", name="<pod>", namespace="team")
    area.decide("d2", allowed=False, resource="secrets")
    listed = await area.root.get("/auth/admin/decisions")
    assert_is_safe_page(listed, connects=True)
    assert IDS.findall(text_of(listed)) == ["d2", "d1"]
    assert "&lt;ann&gt;" in text_of(listed)
    assert "list pods &lt;pod&gt; in team" in text_of(listed)
    assert "&lt; 10 ms" in text_of(listed)
    explained = await area.page("/auth/admin/refusals?id=d1")
    assert "Allowed: why" in explained
    assert "allowed: rule 1" in explained
    assert "Permission denied: why" in await area.page("/auth/admin/refusals?id=d2")


async def test_decisions_are_searched_and_sorted(make: Make, clock: FakeClock) -> None:
    area = Administered(make, clock)
    await area.root.sign_in()
    await area.page("/auth/admin/decisions")
    area.decide("d1")
    clock.advance(60)
    area.decide("d2", "Bob", allowed=False, resource="secrets", subresource="status", upstream="other")
    clock.advance(60)
    area.decide("d3", verb="get", resource="", path="/healthz/ready")
    for query, expected in (
        ("", ["d3", "d2", "d1"]),
        ("?order=oldest", ["d1", "d2", "d3"]),
        ("?user=BO", ["d2"]),
        ("?group=dev", ["d3", "d2", "d1"]),
        ("?group=de", []),
        ("?verb=get", ["d3"]),
        ("?resource=secrets%2Fst", ["d2"]),
        ("?path=healthz", ["d3"]),
        ("?upstream=other", ["d2"]),
        ("?outcome=allowed", ["d3", "d1"]),
        ("?outcome=denied", ["d2"]),
        ("?since=2026-01-01T00:00:30&until=2026-01-01T00:01:30", ["d2"]),
    ):
        page = await area.page(f"/auth/admin/decisions{query}")
        assert IDS.findall(page) == expected, query
        assert ('id="live"' in page) == ("oldest" not in query)
    assert 'aria-sort="descending"' in await area.page("/auth/admin/decisions")
    for query in ("?outcome=x", "?since=yesterday", "?user=a&user=b"):
        assert (await area.root.get(f"/auth/admin/decisions{query}")).status == 400


@pytest.mark.parametrize("order", ["", "order=oldest"])
async def test_pages_of_refusals_are_the_whole_list(make: Make, clock: FakeClock, order: str) -> None:
    area = Administered(make, clock)
    await area.root.sign_in()
    numbers = [area.authorizer.record(Attributes(UserInfo("ann"), request_info()), DENIED) for _ in range(20)]
    clock.advance(1)
    numbers += [area.authorizer.record(Attributes(UserInfo("ann"), request_info()), DENIED) for _ in range(70)]
    target: str | None = f"/auth/admin/refusals?{order}"
    listed: list[str] = []
    while target:
        page = await area.page(target)
        assert len(IDS.findall(page)) <= ON_A_PAGE
        listed += IDS.findall(page)
        target = next_page(page)
        if not order:
            clock.advance(1)
            area.authorizer.record(Attributes(UserInfo("new"), request_info()), DENIED)
    assert sorted(listed) == sorted(numbers)


async def test_the_area_speaks_german(make: Make, clock: FakeClock) -> None:
    area = Administered(make, clock)
    await area.root.sign_in()
    for path in ("", "/decisions", "/refusals", "/accounts", "/who-can?verb=get&resource=pods", "/replicas"):
        answer = await area.root.get(f"/auth/admin{path}", headers=(("accept-language", "de"),))
        assert answer.status == 200
        text = text_of(answer)
        assert '<html lang="de"' in text
        for english in ("All sessions", "Service accounts", "Denied requests", "Next page", "Search"):
            assert english not in text, (path, english)
