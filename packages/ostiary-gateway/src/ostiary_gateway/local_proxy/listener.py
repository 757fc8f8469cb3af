"""The listener of one context: its loopback port, its certificate, its tokens, and the cluster behind it."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

from ostiary.core.clock import Clock
from ostiary.errors import ConfigurationError
from ostiary_gateway.http1.request_head import ServerLimits
from ostiary_gateway.http1.server_connection import Server
from ostiary_gateway.http1.server_tls import ListenerContext
from ostiary_gateway.local_proxy.certificate import ADDRESS, load_into
from ostiary_gateway.local_proxy.cluster import ConnectedCluster
from ostiary_gateway.local_proxy.forwarding import Forwarding
from ostiary_gateway.local_proxy.loopback_tokens import LoopbackTokens
from ostiary_gateway.local_proxy.record import ConnectRecord

BACKLOG = 128
HANDSHAKE_SECONDS = 10.0
# A controller may have hundreds of watches. Uploads may be slow.
LIMITS = ServerLimits(connections=1000, body_rate=0)


class ContextListener:
    """Serve the context of *record* between `open` and `close`."""

    def __init__(
        self,
        record: ConnectRecord,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        has_terminal: bool = False,
        note_use: Callable[[], None] = lambda: None,
    ) -> None:
        self.record = record
        self.tokens = LoopbackTokens(clock)
        self.cluster = ConnectedCluster(record, loop, clock, has_terminal=has_terminal)
        self.forwarding = Forwarding(record, self.cluster, self.tokens, clock, note_use)
        self._loop = loop
        self._http = Server(self.forwarding.handle, LIMITS, loop)
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Start listening. Raises `ConfigurationError` if the port is not available."""
        self._server = await self._loop.create_server(
            self._http.connection,
            sock=_bind(self.record),
            ssl=_context(self.record),
            backlog=BACKLOG,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
        )

    @property
    def busy(self) -> bool:
        """Whether a request with a valid token is in flight."""
        return self.forwarding.open > 0

    @property
    def connections(self) -> int:
        return len(self._http.connections)

    def tick(self, now: float) -> None:
        for connection in [each for each in self._http.connections if each.deadline <= now]:
            connection.time_out()
        self.cluster.tick(now)

    def close(self) -> None:
        """Stop listening, and reset connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._http.connections):
            connection.reset()
        self.cluster.close()


def _context(record: ConnectRecord) -> ssl.SSLContext:
    context = ListenerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # kubectl offers HTTP/2 first. ALPN selects HTTP/1.1, the only version served here.
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    load_into(context, record.certificate)
    return context


def _bind(record: ConnectRecord) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, record.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        raise ConfigurationError(
            f"the proxy cannot listen on {record.host}",
            cause="another process listens there" if taken else error.strerror,
            hint=f"choose another port: ostiary connect {record.context} --name {record.name} --port PORT",
            code="connect-port-taken",
        ) from None
    return listener
