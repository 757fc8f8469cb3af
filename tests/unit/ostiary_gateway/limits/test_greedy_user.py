"""One greedy user and one modest one, at a real worker on real sockets: the greedy one slows down themselves.

No clock is waited for: what takes long is told so by a later time.
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.http1.request_head import KNOWN_BYTES_PER_OWNER
from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.proxy.plan_cache import PLAN_BYTES_PER_USER
from tests.support.bounded import bytes_of_owner
from tests.support.http1 import Client, Upstreamed, connected, get, turn, until, upstream
from tests.unit.ostiary_gateway.proxy.test_engine import Served, at, configured, served

LATER = 1000.0


async def holding(connection: Upstreamed) -> None:
    """Answers ``/quick`` at once, ``/large`` with more than anybody reads, and everything else never to its end."""
    while True:
        head = await connection.head()
        connection.upstream.requests.append(head)
        target = head.target.partition(b"?")[0]
        if b"upgrade" in [name.lower() for name, _ in head.headers]:
            connection.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            await connection.rest()
            return
        if target.startswith(b"/quick"):
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        elif target == b"/large":
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 20_000_000)
        elif target == b"/events":
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
            await connection.rest()
            return
        elif head.start.startswith(b"GET"):
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbeginning")
        else:
            await connection.rest()
            return


@dataclass
class Two:
    """A worker, a token of Mallory's and one of Jane's."""

    site: Served
    stack: AsyncExitStack
    mallory: str
    jane: str

    @property
    def limits(self) -> Limits:
        return self.site.worker.app.shared.limits

    async def open(self, request: bytes, *, receive_buffer: int = 0) -> Client:
        """Mallory sends *request* on a connection of its own."""
        client = await self.stack.enter_async_context(connected(self.site.port))
        if receive_buffer:
            end = client.writer.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.send(request)
        return client

    async def jane_is_served(self) -> None:
        # A new connection: one that waited while Mallory was busy may have been closed for idling.
        async with connected(self.site.port) as client:
            answer = await client.ask(get("/quick", f"Authorization: Bearer {self.jane}"))
        assert answer.status == 200

    def request(self, target: str, *lines: str, **more: Any) -> bytes:
        return get(target, f"Authorization: Bearer {self.mallory}", *lines, **more)

    def upload(self) -> bytes:
        return self.request("/file", "Content-Length: 100000", method="POST") + b"x"

    def time_passes(self) -> None:
        self.site.worker.app.engine.open_exchanges.tick(time.monotonic() + LATER)


@asynccontextmanager
async def two(folder: Path, **limits: Any) -> AsyncIterator[Two]:
    async with upstream(holding) as made, served(configured(folder, at(made), limits=limits)) as site:
        tokens = site.worker.app.shared.tokens
        mallory = (await tokens.issue(UserInfo("mallory"), provider="me")).token.reveal()
        jane = (await tokens.issue(UserInfo("jane"), provider="me")).token.reveal()
        async with AsyncExitStack() as stack:
            yield Two(site, stack, mallory, jane)


# --- seats and streams ---


@pytest.mark.parametrize("kind", ["slow uploads", "slow answers"])
async def test_whoever_holds_many_requests_open_leaves_seats_to_others(tmp_path: Path, kind: str) -> None:
    """S73: more of them than there are seats, with the defaults for one user's share."""
    async with two(tmp_path, concurrency=8) as both:
        request = both.upload() if kind == "slow uploads" else both.request("/slow")
        for _ in range(20):
            await both.open(request)
        share = both.limits.share(UserInfo("mallory"))
        await until(lambda: share.seats == 2 and both.limits.seats.queued == 18)
        for _ in range(5):
            await both.jane_is_served()
        assert share.seats == 2


async def test_what_takes_long_leaves_its_seat_and_counts_as_a_stream(tmp_path: Path) -> None:
    """S73, 2.11: and where the user has no stream left it keeps its seat."""
    async with two(tmp_path, concurrency=8, streams=3) as both:
        share = both.limits.share(UserInfo("mallory"))
        for _ in range(9):
            await both.open(both.request("/slow"))
        await until(lambda: both.limits.seats.queued == 7)
        for streams in (2, 3, 3):
            await until(lambda: share.seats == 2)
            both.time_passes()
            await turn()
            assert share.streams == streams
        assert (share.seats, share.streams) == (2, 3)
        await both.jane_is_served()


@pytest.mark.parametrize("kind", ["WebSocket", "server-sent events"])
async def test_every_kind_of_stream_counts(tmp_path: Path, kind: str) -> None:
    """2.11: one more than allowed gets 429, on an upstream of any kind."""
    upgrade = ("Connection: Upgrade", "Upgrade: websocket")
    async with two(tmp_path, streams=5) as both:
        request = both.request("/socket", *upgrade) if kind == "WebSocket" else both.request("/events")
        clients = [await both.open(request) for _ in range(20)]
        statuses = [(await client.head()).status for client in clients]
        opened = 101 if kind == "WebSocket" else 200
        assert sorted(statuses) == sorted([opened] * 5 + [429] * 15)
        assert both.limits.share(UserInfo("mallory")).streams == 5
        await both.jane_is_served()
        for client in clients:
            await client.close()
        await until(lambda: both.limits.streams.open_in_all == 0)


# --- what is held ---


async def test_who_does_not_read_is_cut_when_too_much_is_held_for_them(tmp_path: Path) -> None:
    """T2: the bytes that wait are bounded for each user, and given back with the connection."""
    async with two(tmp_path, unreadPerUser=1_000_000) as both:
        share = both.limits.share(UserInfo("mallory"))
        most = 0
        for _ in range(30):
            await both.open(both.request("/large"), receive_buffer=4096)
            await turn(20)
            most = max(most, share.unread)
        await until(lambda: share.connections < 30)
        assert share.unread <= 1_000_000
        assert most <= 1_000_000 + 512 * 1024, "one read beyond it, at most"
        await both.jane_is_served()
        await both.stack.aclose()
        await until(lambda: both.limits.unread == 0)


async def test_a_user_has_only_so_many_connections(tmp_path: Path) -> None:
    """S73."""
    async with two(tmp_path, connectionsPerUser=3) as both:
        clients = [await both.open(both.request("/quick")) for _ in range(5)]
        statuses = [(await client.answer()).status for client in clients]
        assert sorted(statuses) == [200, 200, 200, 429, 429]
        await both.jane_is_served()
        share = both.limits.share(UserInfo("mallory"))
        await until(lambda: share.connections == 3)
        for client in clients:
            await client.close()
        await until(lambda: share.connections == 0)


# --- what is remembered ---


async def test_ever_new_targets_with_many_tokens_fill_only_the_share_of_their_user(tmp_path: Path) -> None:
    """T2: plans, heads, decisions and tokens, in bytes."""
    async with two(tmp_path) as both:
        worker = both.site.worker
        tokens = worker.app.shared.tokens
        await both.jane_is_served()
        await both.jane_is_served()
        mallory = await both.open(b"")
        filling = "x" * 1900
        for number in range(10):
            token = (await tokens.issue(UserInfo("mallory"), provider="me")).token.reveal()
            for target in range(60):
                request = get(f"/quick/{number}/{target}?{filling}", f"Authorization: Bearer {token}")
                for _ in range(2):
                    assert (await mallory.ask(request)).status == 200
        plans, heads = worker.app.engine._plans, worker._http.known._heads
        assert 0 < bytes_of_owner(plans._kept, "mallory") <= PLAN_BYTES_PER_USER
        assert 0 < bytes_of_owner(heads, "mallory") <= KNOWN_BYTES_PER_OWNER
        assert len(plans) < 300
        assert bytes_of_owner(heads, "jane") > 0
        assert bytes_of_owner(plans._kept, "jane") > 0


async def test_equal_requests_of_a_users_tokens_share_one_plan(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        tokens, mallory = both.site.worker.app.shared.tokens, await both.open(b"")
        for _ in range(20):
            token = (await tokens.issue(UserInfo("mallory", groups=("dev",)), provider="me")).token.reveal()
            assert (await mallory.ask(get("/quick", f"Authorization: Bearer {token}"))).status == 200
        token = (await tokens.issue(UserInfo("mallory", groups=("ops",)), provider="me")).token.reveal()
        assert (await mallory.ask(get("/quick", f"Authorization: Bearer {token}"))).status == 200
        assert len(both.site.worker.app.engine._plans) == 2


async def test_names_of_headers_that_somebody_invents_are_not_all_remembered(tmp_path: Path) -> None:
    """T2."""
    async with two(tmp_path) as both:
        client = await both.open(b"")
        before = len(both.site.worker.app.engine._headers._actions)
        for number in range(10):
            name = f"X-{number}-" + "a" * 5000
            assert (await client.ask(both.request("/quick", f"{name}: b"))).status == 200
        assert len(both.site.worker.app.engine._headers._actions) <= before + 2


async def test_a_user_has_only_so_many_sessions_and_the_oldest_ends(tmp_path: Path) -> None:
    """T2: also where one begins at the gateway's own pages."""
    async with upstream(holding) as made:
        config = configured(tmp_path, at(made), tokens={"sessionsPerUser": 3})
        async with served(config) as site:
            tokens = site.worker.app.shared.tokens
            first = await tokens.issue(UserInfo("mallory"), provider="me")
            jane = await tokens.issue(UserInfo("jane"), provider="me")
            for _ in range(2):
                await tokens.issue_browser(UserInfo("mallory"), provider="me")
            assert await tokens.find(first.token.reveal()) is not None
            last = await tokens.issue(UserInfo("mallory"), provider="me")
            assert await tokens.find(first.token.reveal()) is None
            assert await tokens.find(last.token.reveal()) is not None
            assert await tokens.find(jane.token.reveal()) is not None
            assert len(await tokens.store.sessions(username="mallory")) == 3


# --- the processor ---


async def test_tiny_chunks_do_not_hold_others_up(tmp_path: Path) -> None:
    """S73: the upload ends after a few thousand of them, and the upstream gets what came with one read as one chunk."""
    async with two(tmp_path) as both:
        data = both.request("/file", "Transfer-Encoding: chunked", method="POST") + b"1\r\nx\r\n" * 200_000
        clients = [await both.open(data) for _ in range(3)]
        for client in clients:
            # The answer may be lost: they are still writing when the connection is closed.
            with suppress(ConnectionError):
                assert (await client.answer()).status == 400
        await both.jane_is_served()
        share = both.limits.share(UserInfo("mallory"))
        await until(lambda: share.seats == share.connections == 0)
