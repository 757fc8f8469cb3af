"""A client, a gate that lets everything through, and an upstream that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ostiary_gateway.http1.client_connection import UpstreamAddress
from ostiary_gateway.http1.client_pool import Pool
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.response import FailureKind, UpstreamLost
from ostiary_gateway.proxy.proxied_request import ProxiedRequest
from tests.support.http1 import (
    Client,
    Listener,
    Script,
    Upstream,
    Upstreamed,
    connected,
    get,
    honest,
    listening,
    turn,
    upstream,
)

OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"Content-Length: 2\r\n\r\nhi"
UPGRADE = get("/exec", "Connection: Upgrade", "Upgrade: websocket")
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nX-Own: 1\r\n\r\n"


Renewal = bytes | asyncio.Future[bytes | None] | None


@dataclass
class OnlyPool:
    """All that a `ProxiedRequest` asks of its upstream."""

    pool: Pool
    refuses_redirects: bool = False
    renewal: Renewal = None

    def renewed_credential(self, rejected: bytes) -> Renewal:
        return self.renewal


class Gate:
    """Lets everything through, as the engine does with what is allowed."""

    def __init__(self, pool: Pool, timeout: float = 60.0) -> None:
        self.pool, self.timeout = pool, timeout
        self.refuses_redirects = False
        # The line by which the upstream knows us, and what there is in its place once it was rejected.
        self.credential: bytes | None = None
        self.renewal: Renewal = None
        self.proxied: list[ProxiedRequest[Exchange]] = []
        self.finished: list[tuple[int, str]] = []
        self.failed: list[int] = []
        self.streams_left = 1000

    def __call__(self, exchange: Exchange) -> None:
        lines = [exchange.request.method + b" " + exchange.request.target + b" HTTP/1.1", b"Host: upstream.test"]
        if exchange.request.chunked:
            lines.append(b"Transfer-Encoding: chunked")
        elif exchange.request.content_length is not None:
            lines.append(b"Content-Length: %d" % exchange.request.content_length)
        if exchange.request.upgrade:
            lines += [b"Connection: Upgrade", b"Upgrade: " + exchange.request.upgrade]
        proxied = ProxiedRequest(
            exchange,
            OnlyPool(self.pool, self.refuses_redirects, self.renewal),
            b"\r\n".join([*lines, b""]) + (self.credential or b"") + b"\r\n",
            b"Audit-Id: 1",
            self.timeout,
            self,
            exchange,
        )
        proxied.credential = self.credential
        self.proxied.append(proxied)
        proxied.start()

    def proxied_started(self, proxied: ProxiedRequest[Exchange], status: int) -> None: ...

    def proxied_failed(self, proxied: ProxiedRequest[Exchange], status: int, kind: FailureKind) -> None:
        self.failed.append(status)
        proxied.context.respond(status, [], b"failed")

    def proxied_streams(self, proxied: ProxiedRequest[Exchange]) -> bool:
        self.streams_left -= 1
        return self.streams_left >= 0

    def proxied_refused(self, proxied: ProxiedRequest[Exchange]) -> None:
        proxied.context.respond(429, [], b"too many")

    def proxied_finished(self, proxied: ProxiedRequest[Exchange], status: int, error: UpstreamLost | None) -> None:
        self.finished.append((status, str(error or "")))

    @property
    def statuses(self) -> list[int]:
        return [status for status, _ in self.finished]

    def later(self, seconds: float) -> None:
        self.pool.tick(asyncio.get_running_loop().time() + seconds)


@dataclass
class Between:
    client: Client
    listener: Listener
    gate: Gate
    upstream: Upstream


@asynccontextmanager
async def between(script: Script = honest, *, timeout: float = 60.0, **options: Any) -> AsyncIterator[Between]:
    """A client, a gate and an upstream that follows *script*."""
    async with upstream(script) as made:
        pool = Pool(UpstreamAddress("127.0.0.1", made.port), asyncio.get_running_loop(), **options)
        gate = Gate(pool, timeout)
        async with listening(gate) as listener, connected(listener.port) as client:
            yield Between(client, listener, gate, made)
        pool.close()
        for connection in list(pool.connections):
            connection.abandon()


def says(*answers: bytes, then: str = "wait") -> Script:
    """One answer after the other, on whatever connections the requests come; the last one again and again."""
    left = list(answers)

    async def script(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            connection.send(left.pop(0) if len(left) > 1 else left[0])
            if then == "close":
                return
            if then == "reset":
                await turn(8)
                connection.reset()
                return

    return script


def tunnel(*, ahead: bytes = b"") -> Script:
    """Switches, then says in capitals what it hears."""

    async def script(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.head())
        connection.send(SWITCH + ahead)
        while data := await connection.reader.read(65536):
            connection.raw += data
            connection.send(data.upper())
            await connection.writer.drain()

    return script


def dies(first: bytes = HI) -> Script:
    """Answers the first request of a connection and closes when the second one comes."""

    async def script(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.request())
        connection.send(first)
        connection.upstream.requests.append(await connection.head())

    return script
