"""The connection to the cluster of one context: the credential, the TLS context and the connections of its requests.

Everything about the user is implemented in `ostiary.client`: where the credential comes from, when it is refreshed, the
proxy, impersonation. This module connects it to the gateway's connection pool.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from ostiary import kubeconfig as kubeconfigs
from ostiary.client.access import ClusterAccess
from ostiary.client.connection import connect
from ostiary.client.retry_on_401 import RequestHeaders, Signature, Signing
from ostiary.core.clock import Clock
from ostiary.core.single_flight import wait_async
from ostiary.core.watched_file import Fingerprint, fingerprint
from ostiary.errors import PluginNotInteractive
from ostiary.model import Credential
from ostiary_gateway.http1.client_connection import UpstreamAddress, UpstreamConnection, dial
from ostiary_gateway.http1.client_pool import Dial, Pool
from ostiary_gateway.local_proxy.record import ConnectRecord
from ostiary_gateway.local_proxy.supported_contexts import check_connectable

# Connections through the proxy that the kubeconfig or the environment names: CONNECT for ``http://`` and ``https://``
# proxies, RFC 1928 and 1929 for SOCKS. As with client-go, the proxy resolves the cluster's name. A proxy over TLS is
# verified with the system's certificate authorities, not the cluster's, and does not get the client certificate.

_DIAL_THROUGH_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
LARGEST_HEAD = 16 * 1024
_SOCKS_FAILURES = {
    1: "general failure",
    2: "not allowed by its rules",
    3: "the network is unreachable",
    4: "the host is unreachable",
    5: "connection refused",
    6: "the connection timed out",
}


def through(proxy: str) -> Dial:
    """Return a dialer for connections through *proxy*, a URL that `client.proxy` has checked."""
    parts = urlsplit(proxy)
    host = parts.hostname or ""

    async def dial(
        address: UpstreamAddress, loop: asyncio.AbstractEventLoop, make_connection: Callable[[], UpstreamConnection]
    ) -> UpstreamConnection:
        context = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or _DIAL_THROUGH_PORTS[parts.scheme]
        # No StreamWriter: it would close the connection when it is garbage-collected.
        reader = asyncio.StreamReader(limit=LARGEST_HEAD)
        transport, _ = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader), host, port, ssl=context
        )
        try:
            ask = _ask_socks if parts.scheme.startswith("socks") else _ask_http
            await ask(parts, address, reader, transport)
            return await _take_over(transport, address, loop, make_connection())
        except BaseException:
            transport.abort()
            raise

    return dial


async def _take_over(
    transport: asyncio.Transport,
    address: UpstreamAddress,
    loop: asyncio.AbstractEventLoop,
    connection: UpstreamConnection,
) -> UpstreamConnection:
    """Switch the connection to its protocol. No data is lost: the cluster sends nothing before the first request."""
    if address.tls is None:
        transport.set_protocol(connection)
        connection.connection_made(transport)
        return connection
    name = address.server_name or address.host
    secured = await loop.start_tls(transport, connection, address.tls, server_hostname=name)
    if secured is None:
        raise ConnectionAbortedError(0, "the connection was closed during the handshake")
    connection.connection_made(secured)
    return connection


async def _ask_http(
    proxy: SplitResult, address: UpstreamAddress, reader: asyncio.StreamReader, transport: asyncio.Transport
) -> None:
    host = f"[{address.host}]" if ":" in address.host else address.host
    target = f"{host}:{address.port}".encode("idna" if not host.isascii() else "ascii")
    lines = [b"CONNECT %s HTTP/1.1" % target, b"Host: " + target]
    if proxy.username is not None:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        lines.append(b"Proxy-Authorization: Basic " + b64encode(pair))
    transport.write(b"\r\n".join([*lines, b"", b""]))
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise OSError(0, "the proxy gave no usable answer") from None
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise OSError(0, "the proxy gave no usable answer")
    if words[1][:1] != b"2":
        raise OSError(0, f"the proxy refused with status {int(words[1][:3])}")


async def _ask_socks(
    proxy: SplitResult, address: UpstreamAddress, reader: asyncio.StreamReader, transport: asyncio.Transport
) -> None:
    try:
        transport.write(b"\x05\x02\x00\x02" if proxy.username else b"\x05\x01\x00")
        version, method = await reader.readexactly(2)
        if version != 5 or method not in ((0, 2) if proxy.username else (0,)):
            raise OSError(0, "the SOCKS proxy accepts none of our ways to sign in")
        if method == 2:
            username, password = (unquote(part or "").encode()[:255] for part in (proxy.username, proxy.password))
            transport.write(b"\x01%c%s%c%s" % (len(username), username, len(password), password))
            if (await reader.readexactly(2))[1] != 0:
                raise OSError(0, "the SOCKS proxy rejects the username or password")
        host = address.host.encode("ascii" if address.host.isascii() else "idna")
        transport.write(b"\x05\x01\x00\x03%c%s" % (len(host), host) + address.port.to_bytes(2, "big"))
        _, code, _, kind = await reader.readexactly(4)
        if code:
            raise OSError(0, f"the SOCKS proxy refused: {_SOCKS_FAILURES.get(code, 'unknown reason')}")
        # Skip the bound address of the proxy.
        size = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
        await reader.readexactly(size + 2)
    except asyncio.IncompleteReadError:
        raise OSError(0, "the SOCKS proxy gave no usable answer") from None


T = TypeVar("T")

NO_TERMINAL = "let it ask in a terminal: ostiary connect --stop, then ostiary connect CONTEXT --foreground"
# For connecting and the TLS handshake. A hardware key, or a cluster behind a VPN, may be slow.
CONNECT_SECONDS = 30.0
MOST_CONNECTIONS, MOST_WAITING = 256, 1024
# How often the TLS context is rebuilt, because the file of certificate authorities may have changed.
CONTEXT_SECONDS = 60.0
_PORTS = {"http": 80, "https": 443}


class Route:
    """The cluster's address, credential and connections, for one version of the kubeconfig."""

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
        """Return the signature, or a future for the credential. Raises `OstiaryError`.

        The first call runs in a thread: it may have to unlock a hardware key, and the user may be typing the PIN.
        """
        if self._has_asked:
            return signing.current()
        # One call at a time: the others would each block a thread.
        async with self._first_asked:
            current = await wait_async(_in_own_thread(signing.current))
            self._has_asked = True
            return current

    async def take_up(self, credential: Credential | None) -> None:
        """Use the client certificate of *credential* for new connections. Raises `OstiaryError`."""
        now = self._clock.monotonic()
        if credential is self._made_for and now < self._context_again_at:
            return
        # In a thread: it may have to search for a hardware key.
        context: ssl.SSLContext | None = await asyncio.to_thread(self.access.ssl_context)
        self._made_for, self._context_again_at = credential, now + CONTEXT_SECONDS
        if context is not self.pool.address.tls:
            self.pool.move(UpstreamAddress(*self._place, tls=context))


def _in_own_thread(work: Callable[[], T]) -> Future[T]:
    """Run *work* in a daemon thread of its own.

    A thread of the event loop's pool would keep the process from exiting while a PIN prompt is open.
    """
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
    """The upstream of one `ProxiedRequest`: a request to the cluster with the credential that it uses."""

    refuses_redirects = True

    def __init__(self, route: Route, headers: RequestHeaders) -> None:
        self.route = route
        self.pool = route.pool
        self.error = ""
        self._signing = route.access.signing.for_request(headers)
        self._credential: Credential | None = None
        self._is_renewed = False

    async def sign(self) -> bytes:
        """Return the header lines with the host and the credential. Raises `OstiaryError`."""
        current = await self.route.ask(self._signing)
        if isinstance(current, Future):
            credential = await wait_async(current)
            self._credential = credential
        else:
            self._credential = current.credential
        await self.route.take_up(self._credential)
        return self._lines()

    def renewed_credential(self, rejected: bytes) -> asyncio.Future[bytes | None] | None:
        """Handle a 401 like the client: refresh once for all requests with the rejected credential, then retry once."""
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
        """Record the status of the cluster's response."""
        self._signing.note(self._credential, status)

    def _lines(self) -> bytes:
        lines = [f"{name}: {value}\r\n".encode() for name, value in self._signing.signature(self._credential).headers]
        return b"".join([self.route.host_line, *lines])


class ConnectedCluster:
    """The cluster of one record. The kubeconfig is loaded again when it has changed."""

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
        """Return the current route. Raises `ConfigurationError` if the kubeconfig cannot be used."""
        if not self._routes or any(fingerprint(path) != seen for path, seen in self._seen.items()):
            # Take the fingerprints before reading: a concurrent write is then detected as a change.
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
        """Raise the `OstiaryError` that would prevent a request now, if any."""
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
