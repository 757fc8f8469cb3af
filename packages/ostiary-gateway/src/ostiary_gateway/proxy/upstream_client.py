"""Requests of the gateway itself to an upstream, with a complete response.

Used by admission providers that count objects, and for discovery. They use the upstream's pool and credential, and the
identity of a user if one is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.http1.client_connection import UpstreamConnection
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.response import Framing, UpstreamLost
from ostiary_gateway.interfaces.admission import UpstreamAnswer
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.proxy.upstreams import Upstream

ANSWER_SECONDS = 30.0
LARGEST_ANSWER = 16 * 1024 * 1024
# Concurrent requests per worker: a page of a list takes some memory, and the upstream serves others, too.
MOST_AT_ONCE = 16

FindPlugin = Callable[[str, str], Upstream | None]


class UpstreamClient:
    """Implements `ostiary_gateway.interfaces.admission.UpstreamApi`."""

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        objects: ObjectStore | None = None,
        *,
        seconds: float = ANSWER_SECONDS,
        reports_failures: bool = True,
    ) -> None:
        """*reports_failures*: failed requests count as failures of the upstream, as in the readiness probe."""
        self.objects = objects
        self._upstreams = upstreams
        self.upstreams = tuple(name for name, upstream in upstreams.items() if upstream.is_kubernetes)
        self._seconds = seconds
        self._reports_failures = reports_failures
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        # Finds the API plugin that serves a path of an upstream.
        self.find_plugin: FindPlugin = _no_plugin

    async def ask(
        self,
        upstream: str,
        target: str,
        *,
        method: str = "GET",
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        user: UserInfo | None = None,
    ) -> UpstreamAnswer:
        place = self.find_plugin(upstream, target) or self._upstreams.get(upstream)
        if place is None:
            raise _failure("there is no such upstream")
        return await self.ask_place(place, target, method=method, headers=headers, body=body, user=user)

    async def ask_place(
        self,
        place: Upstream,
        target: str,
        *,
        method: str = "GET",
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        user: UserInfo | None = None,
        largest: int = LARGEST_ANSWER,
    ) -> UpstreamAnswer:
        """Like `ask`, for an unnamed upstream; the response may have at most *largest* bytes."""
        try:
            async with asyncio.timeout(self._seconds), self._places:
                return await _ask_twice(place, request_head(place, target, method, headers, body, user) + body, largest)
        except TimeoutError:
            raise _failure("it did not answer in time") from None
        except OSError:
            raise _failure("the gateway's own credential cannot be read") from None
        except UpstreamLost as error:
            if self._reports_failures:
                place.record_failure(error)
            raise _failure(str(error)) from None


async def _ask_twice(upstream: Upstream, data: bytes, largest: int) -> UpstreamAnswer:
    """Send a request, which must be read-only. Retry it once: a pooled connection may have died while it was idle."""
    try:
        return await _ask(upstream, data, largest)
    except UpstreamLost as error:
        if error.answered or error.timeout:
            raise
    return await _ask(upstream, data, largest, fresh=True)


async def _ask(upstream: Upstream, data: bytes, largest: int, *, fresh: bool = False) -> UpstreamAnswer:
    receiver = _WholeReceiver(asyncio.get_running_loop(), largest)
    try:
        upstream.pool.acquire(lambda connection, error: receiver.take_connection(connection, error, data), fresh=fresh)
        return await receiver.answer
    finally:
        receiver.give_up()


def _no_plugin(upstream: str, target: str) -> Upstream | None:
    return None


def request_head(
    upstream: Upstream,
    target: str,
    method: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    user: UserInfo | None,
) -> bytes:
    lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers]
    length = b"Content-Length: %d\r\n" % len(body) if body or method != "GET" else b""
    return b"".join(
        (
            f"{method} {target} HTTP/1.1\r\n".encode("ascii"),
            upstream.host_line,
            b"" if user is None else upstream.identity(user),
            upstream.credential(),
            *lines,
            length,
            b"\r\n",
        )
    )


def _failure(cause: str) -> ProviderError:
    return ProviderError("an upstream could not be asked", cause=cause)


class _WholeReceiver:
    """Collects one response."""

    def __init__(self, loop: asyncio.AbstractEventLoop, largest: int) -> None:
        self._largest = largest
        self.answer: asyncio.Future[UpstreamAnswer] = loop.create_future()
        self._connection: UpstreamConnection | None = None
        self._status = 0
        self._type = ""
        self._parts: list[bytes] = []
        self._size = 0

    def take_connection(self, connection: UpstreamConnection | None, error: UpstreamLost | None, data: bytes) -> bool:
        if self.answer.done():
            return False
        if connection is None:
            self._fail(error or UpstreamLost("it cannot be reached", answered=False))
        else:
            self._connection = connection
            connection.send(data, self, is_head=False)
        return True

    def give_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()
        if not self.answer.done():
            self.answer.cancel()

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        self._status, self._parts = status, [body]
        self._type = next(
            (
                line[13:].strip().decode("latin-1")
                for line in lines.split(b"\r\n")
                if line[:13].lower() == b"content-type:"
            ),
            "",
        )
        self.response_end([])

    def response_head(self, status: int, headers: Headers, framing: Framing) -> None:
        self._status = status
        self._type = next((value.decode("latin-1") for name, value in headers if name.lower() == b"content-type"), "")

    def response_informational(self, status: int, headers: Headers) -> None:
        pass

    def response_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._largest:
            self._parts = []
            self._fail(UpstreamLost("its answer is too large", answered=True))
        else:
            self._parts.append(data)

    def response_flush(self) -> None:
        pass

    def response_end(self, trailers: Headers) -> None:
        self._connection = None
        if not self.answer.done():
            self.answer.set_result(UpstreamAnswer(self._status, self._type, b"".join(self._parts)))

    def response_switched(self, rest: bytes) -> None:
        self._fail(UpstreamLost("it switched protocols without being asked", answered=True))

    def upstream_lost(self, error: UpstreamLost) -> None:
        self._connection = None
        self._fail(error)

    def upstream_full(self) -> None:
        pass

    def upstream_ready(self) -> None:
        pass

    def _fail(self, error: UpstreamLost) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
