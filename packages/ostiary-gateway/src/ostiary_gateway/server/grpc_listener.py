"""The gRPC listener of a worker (``listen.grpc``), for proxies that use ``ext_authz``.

It shares the certificate and the limits of the main listener, and is opened and closed with it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from ostiary.core.extras import needing
from ostiary_gateway.extauth.grpc import Handle
from ostiary_gateway.http1.fair_queue import FairQueue
from ostiary_gateway.http1.request_head import ServerLimits
from ostiary_gateway.server.listener import serve_on

with needing("grpc", purpose="listen.grpc"):
    from ostiary_gateway.extauth.grpc_connection import CheckConnection, CheckServer


class GrpcListener:
    """Serve on *listener*, a socket that outlives reloads."""

    def __init__(
        self,
        listener: socket.socket,
        handle: Handle,
        limits: ServerLimits,
        loop: asyncio.AbstractEventLoop,
        queue: FairQueue | None = None,
    ) -> None:
        self._listener = listener
        self._loop = loop
        self._checks = CheckServer(handle, limits, loop, queue)
        self._server: asyncio.Server | None = None
        self._closed = False

    @property
    def connections(self) -> set[CheckConnection]:
        return self._checks.connections

    async def listen(self, context: ssl.SSLContext | None) -> None:
        """Listen with the certificate of *context*, instead of the previous one."""
        server = await serve_on(self._listener, self._checks.connection, context, self._loop)
        old, self._server = self._server, server
        if old is not None:
            old.close()
        if self._closed:
            server.close()

    def reload(self, handle: Handle, limits: ServerLimits) -> None:
        """Serve calls with *handle* from now on. New connections get these *limits*."""
        self._checks.handle, self._checks.limits = handle, limits

    def close(self) -> None:
        """Stop accepting connections."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        self._listener.close()
