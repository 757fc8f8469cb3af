"""Reads and drops the rest of a request that has its answer already.

Put in the responder's place by `server.connection`. A connection that is closed while the client still writes is reset,
and the answer is lost with it; so the rest is read, up to a limit.
"""

from __future__ import annotations

from ostiary.gateway.http1.exchange import Exchange

DISCARD_LIMIT = 256 * 1024


class DiscardedBody:
    """The responder of an exchange whose answer is written and whose request is not complete."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def body(self, data: bytes) -> None:
        exchange = self._exchange
        exchange.discarded += len(data)
        if exchange.discarded > DISCARD_LIMIT:
            exchange.connection.close_soon()

    def body_end(self) -> None:
        self._exchange.responder = None
        self._exchange.connection.finish(self._exchange)

    def client_lost(self) -> None:
        pass

    def client_full(self) -> None:
        pass

    def client_ready(self) -> None:
        pass
