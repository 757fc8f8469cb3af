"""A gateway and an upstream with a request in transit between them, for the tests of `remembered.fast_forward`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.proxy.engine import Engine
from ostiary_gateway.proxy.fast_path import FastForward
from tests.support.http1 import Client, Message, Upstream, Upstreamed, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    ALICE,
    Gateway,
    ImmediatePolicy,
    at,
    configured,
    cut,
    serving,
)

PODS = "/api/v1/namespaces/shop/pods"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
# So often the same bytes must come until all that follows from them is remembered.
UNTIL_KNOWN = 4


class Answering:
    """An upstream that answers at once, or leaves it to the test from `holds` on."""

    def __init__(self) -> None:
        self.holds = False
        self.waiting: list[Upstreamed] = []

    async def __call__(self, connection: Upstreamed) -> None:
        while True:
            request = await connection.request()
            connection.upstream.requests.append(request)
            if self.holds:
                self.waiting.append(connection)
            else:
                connection.send(OK)


class Scene:
    """A gateway that has seen a request often enough, and its upstream."""

    def __init__(self, gateway: Gateway, made: Upstream, answering: Answering) -> None:
        self.gateway, self.made, self.answering = gateway, made, answering
        self.client = gateway.client

    @property
    def engine(self) -> Engine:
        return self.gateway.worker.app.engine

    @property
    def under_way(self) -> list[FastForward]:
        return list(self.engine._transits._open)

    async def begin(self, *target: str, client: Client | None = None, data: bytes = b"", **more: Any) -> FastForward:
        """Send a request that came before, and leave it unanswered; what it has become."""
        data = data or self.gateway.request(*target, **more)
        self.answering.holds = False
        method = more.get("method", "GET")
        for _ in range(UNTIL_KNOWN):
            assert (await self.client.ask(data, method)).status == 200
        return await self.send(data, client=client)

    async def send(self, data: bytes, *, client: Client | None = None) -> FastForward:
        """Send what is known, and leave it unanswered."""
        before = set(self.under_way)
        self.answering.holds = True
        self.answering.waiting.clear()
        (client or self.client).send(data)
        await until(lambda: bool(self.answering.waiting))
        (fast_forward,) = set(self.under_way) - before
        return fast_forward

    @property
    def remote(self) -> Upstreamed:
        """The connection on which the request waits for its answer."""
        return self.answering.waiting[-1]

    async def answer(self, data: bytes = OK, method: str = "GET") -> Message:
        self.remote.send(data)
        return await self.client.answer(method)

    async def revoke(self, kind: RevocationKind, value: str = "") -> None:
        shared = self.gateway.worker.app.shared
        await shared.tokens.revoke(kind, value)
        await shared.authenticator.feed.confirm()

    async def is_cut(self, client: Client | None = None) -> None:
        """Wait until both sides have noticed the end, and make sure that nothing is left of it."""
        await cut(client or self.client)
        await until(self.remote.reader.at_eof)
        self.is_over()

    def is_over(self) -> None:
        assert self.under_way == []
        assert (self.gateway.seats, self.gateway.streams) == (0, 0)
        assert not self.engine.busy
        assert self.gateway.worker.app.shared.authenticator.open_streams == 0

    async def codes(self) -> list[int]:
        """The status of each request, as it was recorded; 0 if it was cut."""
        return [event.get("responseStatus", {}).get("code", 0) for event in await self.gateway.events()]


@asynccontextmanager
async def scene(
    folder: Path, policy: ImmediatePolicy | None = None, user: UserInfo = ALICE, **more: Any
) -> AsyncIterator[Scene]:
    """The worker's own ticker is stopped: it makes other things of what is under way, at times that nobody knows."""
    answering = Answering()
    shortcuts, may_fail_inside = more.pop("shortcuts", True), more.pop("may_fail_inside", False)
    async with upstream(answering) as made:
        sections = {
            name: [{**each, "server": at(made)} if "server" in each else each for each in section]
            if name == "upstreams"
            else section
            for name, section in more.items()
        }
        config = configured(folder, at(made), policy, **sections)
        async with serving(config, user, shortcuts=shortcuts, may_fail_inside=may_fail_inside) as gateway:
            assert gateway.worker._ticker is not None
            gateway.worker._ticker.cancel()
            yield Scene(gateway, made, answering)


def without_id(data: bytes) -> bytes:
    return re.sub(rb"(?i)(audit-id: )[0-9a-f-]{36}", rb"\1", data)
