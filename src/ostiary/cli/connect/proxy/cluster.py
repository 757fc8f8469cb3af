"""One cluster as the user of a kubeconfig: the credential, the TLS context and the connections of its requests.

Everything about the user is `ostiary.client`'s: where the credential comes from, when it is refreshed, which proxy is
used, whom it impersonates. Here the connections of the gateway's engine are given that.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar
from urllib.parse import urlsplit

from ostiary.cli.connect.connectable import check_connectable
from ostiary.cli.connect.proxy.dial_through import through
from ostiary.cli.connect.record import ConnectRecord
from ostiary.client import kubeconfig as kubeconfigs
from ostiary.client.access import ClusterAccess
from ostiary.client.connection import connect
from ostiary.client.retry_on_401 import RequestHeaders, Signature, Signing
from ostiary.core.caching.waiting import wait_async
from ostiary.core.clock import Clock
from ostiary.core.watched_file import Fingerprint, fingerprint
from ostiary.errors import PluginNotInteractive
from ostiary.gateway.http1.client.address import UpstreamAddress
from ostiary.gateway.http1.client.dial import dial
from ostiary.gateway.http1.client.pool import Pool
from ostiary.model import Credential

T = TypeVar("T")

NO_TERMINAL = "let it ask in a terminal: ostiary connect --stop, then ostiary connect CONTEXT --foreground"
# For a whole connection with its handshake. A key in hardware, or a cluster behind a VPN, may take its time.
CONNECT_SECONDS = 30.0
MOST_CONNECTIONS, MOST_WAITING = 256, 1024
# The context is asked for again after this, because the file of the authorities may have changed.
CONTEXT_SECONDS = 60.0
_PORTS = {"http": 80, "https": 443}


class Route:
    """The way to the cluster as one version of the kubeconfig describes it."""

    def __init__(self, access: ClusterAccess, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        server = urlsplit(access.server)
        assert server.hostname is not None, "the kubeconfig was checked"
        self.access = access
        self.path = server.path.rstrip("/").encode()
        self.host_line = b"Host: " + server.netloc.encode() + b"\r\n"
        self._clock = clock
        self._place = server.hostname, server.port or _PORTS[server.scheme]
        self.pool = Pool(
            UpstreamAddress(*self._place),
            loop,
            limit=MOST_CONNECTIONS,
            queue=MOST_WAITING,
            connect_timeout=CONNECT_SECONDS,
            dial=dial if access.proxy is None else through(access.proxy),
        )
        self._first_asked = asyncio.Lock()
        self._has_asked = False
        self._made_for: Credential | None = None
        self._context_again_at = float("-inf")

    async def ask(self, signing: Signing) -> Signature | Future[Credential]:
        """How *signing* signs now, asked for in a thread until it was there once; raises `OstiaryError`.

        A key in hardware may have to be opened for it, and a person may be typing the PIN.
        """
        if self._has_asked:
            return signing.current()
        # One at a time: the others would wait in as many threads.
        async with self._first_asked:
            current = await wait_async(_in_own_thread(signing.current))
            self._has_asked = True
            return current

    async def take_up(self, credential: Credential | None) -> None:
        """Use the client certificate of *credential* from the next connection on; raises `OstiaryError`."""
        now = self._clock.monotonic()
        if credential is self._made_for and now < self._context_again_at:
            return
        # In a thread: a key in hardware may have to be found first.
        context: ssl.SSLContext | None = await asyncio.to_thread(self.access.ssl_context)
        self._made_for, self._context_again_at = credential, now + CONTEXT_SECONDS
        if context is not self.pool.address.tls:
            self.pool.move(UpstreamAddress(*self._place, tls=context))


def _in_own_thread(work: Callable[[], T]) -> Future[T]:
    """Not one of the event loop's: the process ends without waiting for a person who is asked there."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="first credential", daemon=True).start()
    return future


class SignedRequest:
    """One request's way to the cluster, with the credential that it has. It is what a `Proxied` calls its upstream."""

    refuses_redirects = True

    def __init__(self, route: Route, headers: RequestHeaders) -> None:
        self.route = route
        self.pool = route.pool
        self.error = ""
        self._signing = route.access.signing.for_request(headers)
        self._credential: Credential | None = None
        self._is_renewed = False

    async def sign(self) -> bytes:
        """The lines of the head that say where it goes and who asks; raises `OstiaryError` if that is not known."""
        current = await self.route.ask(self._signing)
        if isinstance(current, Future):
            credential = await wait_async(current)
            self._credential = credential
        else:
            self._credential = current.credential
        await self.route.take_up(self._credential)
        return self._lines()

    def renewed_credential(self, rejected: bytes) -> asyncio.Future[bytes | None] | None:
        """The client's rule for a 401: one refresh for all whose credential was rejected, and one more attempt."""
        if self._is_renewed:
            return None
        replacement = self._signing.replacement(self._credential, 401, {})
        if replacement is None:
            return None
        self._is_renewed = True
        return asyncio.ensure_future(self._renew(replacement))

    async def _renew(self, replacement: Credential | Future[Credential | None]) -> bytes | None:
        try:
            newer = await wait_async(replacement) if isinstance(replacement, Future) else replacement
            if not self._signing.sends_again(newer, replayable=True):
                return None
            await self.route.take_up(newer)
        except Exception as error:
            self.error = str(getattr(error, "summary", type(error).__name__))
            return None
        self._credential = newer
        return self._lines()

    def note(self, status: int) -> None:
        """The cluster has answered with *status*."""
        self._signing.note(self._credential, status)

    def _lines(self) -> bytes:
        lines = [f"{name}: {value}\r\n".encode() for name, value in self._signing.signature(self._credential).headers]
        return b"".join([self.route.host_line, *lines])


class ConnectedCluster:
    """The cluster of one record. The kubeconfig is read again when it has changed."""

    def __init__(
        self, record: ConnectRecord, loop: asyncio.AbstractEventLoop, clock: Clock, *, has_terminal: bool
    ) -> None:
        self._record = record
        self._loop = loop
        self._clock = clock
        self._has_terminal = has_terminal
        self._seen: dict[str, Fingerprint | None] = {}
        self._routes: list[Route] = []

    def route(self) -> Route:
        """Raises `ConfigurationError` if the kubeconfig cannot be used."""
        if not self._routes or any(fingerprint(path) != seen for path, seen in self._seen.items()):
            # Before they are read: what is written meanwhile is then seen as a change.
            seen = {path: fingerprint(path) for path in self._record.kubeconfig.split(os.pathsep) if path}
            config = kubeconfigs.load(environ={"KUBECONFIG": self._record.kubeconfig})
            unavailable = not self._has_terminal
            access = connect(config, context=self._record.context, stdin_unavailable=unavailable, clock=self._clock)
            check_connectable(access.selection)
            for old in self._routes:
                old.pool.close()
            self._routes.append(Route(access, self._loop, self._clock))
            self._seen = seen
        return self._routes[-1]

    async def check(self) -> None:
        """Raise the `OstiaryError` for which a request could not be sent now, if there is one."""
        try:
            await SignedRequest(self.route(), _NoHeaders()).sign()
        except PluginNotInteractive as error:
            error.hint = error.hint if self._has_terminal else NO_TERMINAL
            raise

    @property
    def server(self) -> str:
        return self._routes[-1].access.server if self._routes else ""

    def tick(self, now: float) -> None:
        for route in self._routes:
            route.pool.tick(now)
        self._routes = [route for route in self._routes[:-1] if route.pool.connections] + self._routes[-1:]

    def close(self) -> None:
        for route in self._routes:
            route.pool.close()
            for connection in list(route.pool.connections):
                connection.abandon()


class _NoHeaders:
    def has(self, header: str) -> bool:
        return False
