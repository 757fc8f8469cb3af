"""Asks an upstream now and then whether it is well, so that a readiness probe knows before a user does.

Run by the app for each upstream that has a health path. The question goes through the same pool as everything else,
with our own credential and in nobody's name.
"""

from __future__ import annotations

import asyncio

from ostiary.gateway.http1.client import Framing, UpstreamConnection, UpstreamLost
from ostiary.gateway.upstreams import Upstream

EVERY_SECONDS = 10.0
ANSWER_SECONDS = 5.0


async def watch_health(upstream: Upstream, path: str, *, every: float = EVERY_SECONDS) -> None:
    """Ask for as long as the upstream is in use."""
    while True:
        await check_health(upstream, path)
        await asyncio.sleep(every)


async def check_health(upstream: Upstream, path: str) -> bool:
    """Ask once; the outcome is also kept with the upstream."""
    probe = _Probe(asyncio.get_running_loop())
    try:
        line = b"GET " + path.encode("ascii") + b" HTTP/1.1\r\n"
        probe.ask(upstream, line + upstream.host_line + upstream.credential() + b"\r\n")
        status = await asyncio.wait_for(probe.status, ANSWER_SECONDS)
    except TimeoutError:
        probe.give_up()
        upstream.failed("it did not answer its health check in time")
        return False
    except (OSError, UpstreamLost) as error:
        upstream.failed(str(error))
        return False
    if status >= 400:
        upstream.failed(f"its health check answered {status}")
        return False
    upstream.failures = 0
    return True


class _Probe:
    """The sender of one question. Only the status of the answer matters."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.status: asyncio.Future[int] = loop.create_future()
        self._connection: UpstreamConnection | None = None
        self._head = b""
        self._code = 0

    def ask(self, upstream: Upstream, head: bytes) -> None:
        self._head = head
        upstream.pool.acquire(self._connected)

    def give_up(self) -> None:
        if self._connection is not None:
            self._connection.abandon()

    def _connected(self, connection: UpstreamConnection | None, error: UpstreamLost | None) -> bool:
        if self.status.done():
            return False
        if connection is None:
            self._fail(error or UpstreamLost("it cannot be reached", answered=False))
        else:
            self._connection = connection
            connection.send(self._head, self, is_head=False)
        return True

    def response_whole(self, status: int, lines: list[bytes], body: bytes) -> None:
        self._code = status
        self.response_end([])

    def response_head(self, status: int, headers: list[tuple[bytes, bytes]], framing: Framing) -> None:
        self._code = status

    def response_informational(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        pass

    def response_body(self, data: bytes) -> None:
        pass

    def response_flush(self) -> None:
        pass

    def response_end(self, trailers: list[tuple[bytes, bytes]]) -> None:
        self._connection = None
        if not self.status.done():
            self.status.set_result(self._code)

    def response_switched(self, rest: bytes) -> None:
        self.give_up()
        self._fail(UpstreamLost("it switched protocols without being asked", answered=True))

    def upstream_lost(self, error: UpstreamLost) -> None:
        self._connection = None
        self._fail(error)

    def upstream_full(self) -> None:
        pass

    def upstream_ready(self) -> None:
        pass

    def _fail(self, error: UpstreamLost) -> None:
        if not self.status.done():
            self.status.set_exception(error)
