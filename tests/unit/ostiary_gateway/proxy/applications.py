"""Gateways with web applications, for the tests of browsers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.http1 import Upstream, Upstreamed, upstream
from tests.support.visitor import GATEWAY, Visitor
from tests.unit.ostiary_gateway.proxy.gateways import Gateway, Policy, at, configured, serving

WIKI, BOARD = "https://wiki.test", "https://board.test"


async def noting(connection: Upstreamed) -> None:
    """Notes each request, and answers it."""
    while True:
        connection.upstream.requests.append(await connection.request())
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@dataclass
class Site:
    gateway: Gateway
    application: Upstream
    policy: Policy

    def visitor(self) -> Visitor:
        return Visitor(self.gateway.port)

    async def signed_in(self, url: str = f"{WIKI}/") -> Visitor:
        visitor = self.visitor()
        assert (await visitor.open(url)).status == 200
        return visitor


def application(server: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "server": server,
        "hosts": [f"{name}.test"],
        "attributes": "http",
        "auth": "browser",
        **more,
    }


@asynccontextmanager
async def applications(folder: Path, *, script: Any = noting, **more: Any) -> AsyncIterator[Site]:
    """The applications wiki and board, both served by one upstream; *more* is for the settings of each."""
    policy = Policy()
    sections, names = more.pop("sections", {}), more.pop("names", ("wiki", "board"))
    async with upstream(script) as made:
        upstreams = [application(at(made), name, **more) for name in names]
        config = configured(folder, at(made), policy, externalURL=GATEWAY, upstreams=upstreams, **sections)
        async with serving(config) as gateway:
            yield Site(gateway, made, policy)
