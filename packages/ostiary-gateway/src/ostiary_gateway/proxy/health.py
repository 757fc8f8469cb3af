"""Health checks of an upstream, so that readiness probes notice an outage before users do.

Requests use the upstream's pool and the gateway's own credential, without a user.
"""

from __future__ import annotations

import asyncio

from ostiary_gateway.http1.client_connection import UpstreamConnection
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.response import FailureKind, Framing, UpstreamLost
from ostiary_gateway.proxy.failures import REJECTED
from ostiary_gateway.proxy.upstreams import Upstream

EVERY_SECONDS = 10.0
ANSWER_SECONDS = 5.0
# Interval at which a rejected credential is read and tried again.
CREDENTIAL_SECONDS = 1.0
# The credential is checked first, so any path shows whether it is accepted. This one is read-only.
KUBERNETES_PATH = "/version"


async def watch_health(upstream: Upstream, path: str, *, every: float = EVERY_SECONDS) -> None:
    """Check the health for as long as the upstream is in use."""
    while True:
        await check_health(upstream, path)
        await asyncio.sleep(every)


async def watch_credential(upstream: Upstream, *, every: float = CREDENTIAL_SECONDS) -> None:
    """After the upstream has rejected the credential, try it until it is accepted: there may be no user requests."""
    while True:
        await upstream.credential_rejected.wait()
        await check_credential(upstream)
        await asyncio.sleep(every)


async def check_health(upstream: Upstream, path: str) -> bool:
    """Check the health once. The result is also recorded at the upstream."""
    try:
        status = await _ask(upstream, path)
    except UpstreamLost as error:
        upstream.record_failure(error)
        return False
    if status == 401 and upstream.knows_us:
        upstream.record_failure(_rejection())
        # The current content of the file is used for the next request.
        upstream.renewed_credential(b"")
        return False
    if status >= 400:
        upstream.record_failure(UpstreamLost(f"its health check answered {status}", answered=True))
        return False
    upstream.record_answer()
    return True


async def check_credential(upstream: Upstream) -> bool:
    """Read a rejected credential again and try it. Any response but a 401 shows that it is accepted."""
    upstream.renewed_credential(b"")
    path = upstream.settings.health or (KUBERNETES_PATH if upstream.is_kubernetes else upstream.settings.prefix)
    try:
        status = await _ask(upstream, path)
    except UpstreamLost:
        return False
    if status == 401:
        return False
    upstream.record_answer()
    return True


async def settle_doubt(upstream: Upstream) -> None:
    """Before readiness is reported, find out whether the upstream or only one API has rejected the credential.

    An API server forwards the 401 of an aggregated API. A user of that API must not be able to make the gateway
    unready.
    """
    if upstream.credential_rejected.is_set():
        await check_credential(upstream)


def _rejection() -> UpstreamLost:
    return UpstreamLost(REJECTED, answered=True, kind=FailureKind.CREDENTIAL)


async def _ask(upstream: Upstream, path: str) -> int:
    """Return the status of the response; raises `UpstreamLost`."""
    probe = _Probe(asyncio.get_running_loop())
    line = b"GET " + path.encode("ascii") + b" HTTP/1.1\r\n"
    try:
        probe.ask(upstream, line + upstream.host_line + upstream.credential() + b"\r\n")
        # Not `wait_for`: in Python 3.11 it loses a cancellation that coincides with the response.
        async with asyncio.timeout(ANSWER_SECONDS):
            return await probe.status
    except TimeoutError:
        probe.give_up()
        message = "it did not answer its health check in time"
        raise UpstreamLost(message, answered=False, kind=FailureKind.TIMEOUT) from None
    except OSError as error:
        raise upstream.credential_failure(error) from None


class _Probe:
    """Sends one health check. Only the status of the response matters."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.status: asyncio.Future[int] = loop.create_future()
        self._connection: UpstreamConnection | None = None
        self._head = b""
        self._code = 0

    def ask(self, upstream: Upstream, head: bytes) -> None:
        self._head = head
        upstream.pool.acquire(self._take_connection)

    def give_up(self) -> None:
        if self._connection is not None:
            self._connection.abandon()

    def _take_connection(self, connection: UpstreamConnection | None, error: UpstreamLost | None) -> bool:
        if self.status.done():
            return False
        if connection is None:
            self._fail(error or UpstreamLost("it cannot be reached", answered=False))
        else:
            self._connection = connection
            connection.send(self._head, self, is_head=False)
        return True

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        self._code = status
        self.response_end([])

    def response_head(self, status: int, headers: Headers, framing: Framing) -> None:
        self._code = status

    def response_informational(self, status: int, headers: Headers) -> None:
        pass

    def response_body(self, data: bytes) -> None:
        pass

    def response_flush(self) -> None:
        pass

    def response_end(self, trailers: Headers) -> None:
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
