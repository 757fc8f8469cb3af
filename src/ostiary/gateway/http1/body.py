"""Reads a request's whole body.

Called for the few requests that the gateway answers itself, or must look into.
"""

from __future__ import annotations

import asyncio

from ostiary.gateway.http1.exchange import Exchange


class BodyTooLarge(Exception):
    """The body is larger than anything this address is sent."""


class ClientGone(Exception):
    """The client has hung up."""


async def read_body(exchange: Exchange, limit: int) -> bytes:
    """The body; raises `BodyTooLarge` beyond *limit* bytes and `ClientGone` when the client hangs up."""
    if exchange.request.content_length is not None and exchange.request.content_length > limit:
        raise BodyTooLarge
    reader = BodyReader(limit, exchange.connection.loop)
    exchange.accept_body(reader)
    try:
        return await reader.body_read
    finally:
        if exchange.responder is reader:
            exchange.responder = None


class BodyReader:
    """Collects a body. Afterwards it still notices a client that hangs up."""

    __slots__ = ("_limit", "_parts", "_size", "body_read")

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.body_read: asyncio.Future[bytes] = loop.create_future()

    def body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            self._fail(BodyTooLarge())
        else:
            self._parts.append(data)

    def body_end(self) -> None:
        if not self.body_read.done():
            self.body_read.set_result(b"".join(self._parts))

    def client_lost(self) -> None:
        self._fail(ClientGone())

    def client_full(self) -> None:
        pass

    def client_ready(self) -> None:
        pass

    def _fail(self, error: Exception) -> None:
        self._parts.clear()
        if not self.body_read.done():
            self.body_read.set_exception(error)
