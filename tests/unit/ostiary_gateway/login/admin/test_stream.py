"""The stream of decisions: for those who may watch, as long as they may."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.login.admin import stream
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.replicas.decision_feed import MOST_OF_ONE_USER
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.login.admin.administered import Administered
from tests.unit.ostiary_gateway.signing_in import Browser, Make, Says

EVENTS = (("accept", "text/event-stream"), ("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors"))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "TICK_SECONDS", 0)


@pytest.fixture
async def area(make: Make, clock: FakeClock) -> Administered:
    area = Administered(make, clock)
    await area.root.sign_in()
    return area


async def address(area: Administered, query: str = "") -> str:
    page = await area.page(f"/auth/admin/decisions{query}")
    match = re.search(r'data-stream="([^"]+)"', page)
    assert match is not None
    return html.unescape(match[1])


async def opened(area: Administered, target: str, *more: tuple[str, str]) -> LoginAnswer:
    # As a browser sends it: without the headers of a page load.
    cookie = "; ".join(f"{name}={value}" for name, value in area.root.cookies.items())
    return await area.gateway.get(target, cookie=cookie, headers=(*EVENTS, *more))


async def begun(area: Administered, target: str) -> AsyncGenerator[bytes]:
    answer = await opened(area, target)
    assert answer.status == 200, answer
    assert answer.header("Content-Type") == "text/event-stream; charset=utf-8"
    assert answer.stream is not None
    pieces = answer.stream()
    assert (await anext(pieces)).startswith(b"retry: ")
    return pieces


def events(piece: bytes) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in piece.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


async def test_decisions_come_as_they_are_made(area: Administered) -> None:
    pieces = await begun(area, await address(area))
    hostile = "ann\n\nevent: end\ndata: {}"
    area.decide("d1", hostile, name="<b>")
    await area.feed.poll()
    ((name, decision),) = events(await anext(pieces))
    assert name == "decision"
    assert decision["id"] == "d1"
    assert decision["allowed"] is True
    assert decision["request"] == "list pods <b>"
    assert decision["user"] == hostile, "no text of somebody else ends an event"
    assert events(await anext(pieces)) == []
    await pieces.aclose()
    assert not area.feed.is_full_for("root")


async def test_only_what_is_searched_for_comes(area: Administered) -> None:
    pieces = await begun(area, await address(area, "?outcome=denied&user=bob"))
    area.decide("d1", "bob")
    area.decide("d2", "ann", allowed=False)
    area.decide("d3", "bob", allowed=False)
    await area.feed.poll()
    assert [decision["id"] for _, decision in events(await anext(pieces))] == ["d3"]
    await pieces.aclose()


async def test_what_was_decided_before_the_stream_began_comes_first(area: Administered, clock: FakeClock) -> None:
    target = await address(area)
    clock.advance(1)
    area.decide("d1")
    answer = await opened(area, target)
    assert answer.stream is not None
    pieces = answer.stream()
    assert [decision["id"] for _, decision in events(await anext(pieces))] == ["d1"]
    await pieces.aclose()
    again = await opened(area, target, ("last-event-id", "2026-01-01T00:00:02+00:00"))
    assert again.stream is not None
    pieces = again.stream()
    assert events(await anext(pieces)) == []
    await pieces.aclose()
    assert (await opened(area, target, ("last-event-id", "x"))).status == 400


async def test_it_ends_with_the_session(area: Administered, clock: FakeClock) -> None:
    pieces = await begun(area, await address(area))
    await area.gateway.tokens.revoke(RevocationKind.USER, "root", by="test")
    clock.advance(stream.CHECK_SECONDS)
    area.decide("d1")
    await area.feed.poll()
    assert events(await anext(pieces)) == [("end", {})], "and what was decided is not told any more"
    with pytest.raises(StopAsyncIteration):
        await anext(pieces)
    assert not area.feed.is_full_for("root")


async def test_it_ends_with_the_permission(area: Administered, clock: FakeClock) -> None:
    pieces = await begun(area, await address(area))
    area.policy.ended = True
    clock.advance(stream.CHECK_SECONDS)
    assert events(await anext(pieces)) == [("end", {})]
    await pieces.aclose()


async def test_it_ends_if_nobody_can_be_asked(area: Administered, clock: FakeClock) -> None:
    pieces = await begun(area, await address(area))
    await area.gateway.store.close()
    clock.advance(stream.CHECK_SECONDS)
    assert events(await anext(pieces)) == [("end", {})]
    await pieces.aclose()


async def test_it_ends_with_the_configuration_and_after_a_while(
    area: Administered, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "LONGEST_SECONDS", 60)
    target = await address(area)
    pieces = await begun(area, target)
    clock.advance(60)
    with pytest.raises(StopAsyncIteration):
        await anext(pieces)
    pieces = await begun(area, target)
    area.feed.close()
    with pytest.raises(StopAsyncIteration):
        await anext(pieces)


async def test_a_quiet_stream_still_says_something(area: Administered, clock: FakeClock) -> None:
    pieces = await begun(area, await address(area))
    assert await anext(pieces) == b""
    clock.advance(stream.HEARTBEAT_SECONDS)
    assert (await anext(pieces)).startswith(b":")
    await pieces.aclose()


async def test_watchers_are_bounded(area: Administered) -> None:
    target = await address(area)
    streams = [await begun(area, target) for _ in range(MOST_OF_ONE_USER - 1)]
    unread = [await opened(area, target) for _ in range(3)]
    assert [answer.status for answer in unread] == [200] * 3, "nobody reads them: they do not count yet"
    streams.append(await begun(area, target))
    assert (await opened(area, target)).status == 429
    assert unread[0].stream is not None
    late = unread[0].stream()
    assert events(await anext(late)) == [("full", {})]
    for pieces in (*streams, late):
        await pieces.aclose()
    assert (await opened(area, target)).status == 200


async def test_nobody_else_gets_it(area: Administered) -> None:
    """Not a stranger, not another session with its own key or this one's, not a script of another page."""
    target = await address(area)
    path, _, query = target.partition("?")
    assert (await area.gateway.get(target, headers=EVENTS)).status == 401
    for wrong in (path, f"{path}?key=", f"{path}?{query}x", f"{path}?key=x&{query}"):
        assert (await opened(area, wrong)).status == 403
    assert (await opened(area, target, ("origin", "https://evil.example"))).status == 403
    assert (await opened(area, target, ("sec-fetch-site", "cross-site"))).status == 403
    provider = area.gateway.identity[0].instance
    assert isinstance(provider, Says)
    provider.client = UserInfo("mallory")
    mallory = Browser(area.gateway)
    await mallory.sign_in()
    area.root = mallory
    assert (await opened(area, target)).status == 403
    assert (await mallory.get("/auth/admin/decisions")).status == 403
