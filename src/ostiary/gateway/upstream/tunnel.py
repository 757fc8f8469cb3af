"""Raw bytes between a client and an upstream that have switched protocols (WebSocket, SPDY), until one side ends.

Made by `upstream.proxied` after a 101. It takes the place of HTTP on both connections: the event loop calls it for the
upstream's, `http1.server` for the client's. Each side is slowed to the pace of the other.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ostiary.gateway.http1.client.connection import UpstreamConnection
from ostiary.gateway.http1.exchange import ClientConnection
from ostiary.gateway.http1.outbox import LINGER_SECONDS


class TunnelOwner(Protocol):
    """The request that opened the tunnel."""

    def upstream_full(self) -> None: ...

    def upstream_ready(self) -> None: ...

    def tunnel_ended(self) -> None:
        """The upstream hung up."""


class UpstreamTunnel(asyncio.Protocol):
    """One tunnel. Both transports are open when it is made."""

    __slots__ = ("_client", "_owner", "_upstream")

    def __init__(self, client: ClientConnection, upstream: UpstreamConnection, owner: TunnelOwner) -> None:
        self._client = client
        self._upstream = upstream
        self._owner = owner

    # --- the client's end ---

    def from_client(self, data: bytes) -> None:
        self._upstream.transport.write(data)

    def client_full(self) -> None:
        self._upstream.pause()

    def client_ready(self) -> None:
        self._upstream.resume()

    def client_lost(self) -> None:
        """The client hung up: what it sent still reaches the upstream, if that reads it soon."""
        self._upstream.transport.close()
        self._client.loop.call_later(LINGER_SECONDS, self._upstream.transport.abort)

    # --- the upstream's end ---

    def data_received(self, data: bytes) -> None:
        self._client.transport.write(data)

    def pause_writing(self) -> None:
        self._owner.upstream_full()

    def resume_writing(self) -> None:
        self._owner.upstream_ready()

    def eof_received(self) -> bool:
        # Its connection ends with that; what it was told before still leaves.
        self._upstream.transport.flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """What the upstream sent still reaches the client, then that side ends, too."""
        self._client.tunnel = None
        self._owner.tunnel_ended()
        self._client.close_soon()
