"""A connection between the request to switch protocols and the answer to it.

Put in the tunnel's place by `server.connection`. What the client sends ahead of the 101 is kept with its exchange, and
a client that hangs up is noticed.
"""

from __future__ import annotations

from ostiary.gateway.http1.exchange import Exchange


class PendingUpgrade:
    """The tunnel of a connection until the upstream has agreed to one."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def from_client(self, data: bytes) -> None:
        self._exchange.receive(data)

    def client_full(self) -> None:
        if self._exchange.responder is not None:
            self._exchange.responder.client_full()

    def client_ready(self) -> None:
        if self._exchange.responder is not None:
            self._exchange.responder.client_ready()

    def client_lost(self) -> None:
        # The connection tells the responder of the exchange, which is the active one.
        pass
