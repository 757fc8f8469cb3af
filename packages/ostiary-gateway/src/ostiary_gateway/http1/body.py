"""Reads a request's whole body.

Called for the few requests that the gateway answers itself, or must look into.
"""

from __future__ import annotations

import asyncio

from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.request_head import RequestRefused, ServerLimits


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


# Bounds on how a request's body arrives: how slowly, and in how many small chunks.
#
# Made by `http1.server` for each request that has a body. The pieces of one read are handed on together: a body of many
# tiny chunks costs little more than one of few large ones, and both the number of chunks and what stands between them
# are bounded. A body must come at a least rate, and be there after a time; while we do not read, no time passes.

# So many chunks at any rate, one more for each so many bytes of data, and so many more a second: for a program that
# sends what somebody types, a chunk a key.
FREE_CHUNKS = 4096
CHUNK_BYTES = 16
CHUNKS_PER_SECOND = 100
# What stands between the data (sizes, extensions): so much at any rate, and so many bytes for each byte of data.
FREE_OVERHEAD = 64 * 1024
OVERHEAD_RATIO = 16


class IncomingBody:
    """One request's body on its way; `received` bytes of data have come. Times are the event loop's.

    The methods that check raise `RequestRefused`.
    """

    __slots__ = (
        "_allowed",
        "_began",
        "_by_time",
        "_chunked",
        "_chunks",
        "_limits",
        "_paused_at",
        "_pieces",
        "_wire",
        "received",
    )

    def __init__(self, limits: ServerLimits, now: float, *, chunked: bool) -> None:
        self._limits = limits
        self._began = now
        self._chunked = chunked
        self._paused_at: float | None = None
        self._pieces: list[bytes] = []
        self._chunks = 0
        self._by_time = 0
        self._allowed = FREE_CHUNKS
        self.received = 0
        self._wire = 0

    def add(self, piece: bytes) -> None:
        """The next piece of what is being read."""
        self._pieces.append(piece)
        self.received += len(piece)
        if len(self._pieces) > self._allowed:
            self._check_chunks()

    def take(self) -> bytes:
        """All pieces that came since the last time, as one."""
        pieces, self._pieces = self._pieces, []
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._chunks += len(pieces)
        if self.received > self._limits.body_bytes:
            raise RequestRefused(413, "the request's body is too large")
        return data

    def after_read(self, size: int, now: float) -> None:
        """One read, of *size* bytes, is over."""
        self._wire += size
        if self._chunked:
            if self._wire - self.received > FREE_OVERHEAD + OVERHEAD_RATIO * self.received:
                raise RequestRefused(400, "the request's body has too much beside its data")
            self._by_time = int((now - self._began) * CHUNKS_PER_SECOND)
            self._allowed = self._allowed_chunks()

    def _allowed_chunks(self) -> int:
        """How many more there may be, beside those that were taken."""
        return FREE_CHUNKS + self.received // CHUNK_BYTES + self._by_time - self._chunks

    def _check_chunks(self) -> None:
        # The data that came with this read counts as well.
        self._allowed = self._allowed_chunks()
        if self._chunked and len(self._pieces) > self._allowed:
            raise RequestRefused(400, "the request's body has too many small chunks")

    # --- time ---

    def deadline(self, now: float) -> float:
        """When the client is too late: with the next piece, on average, or with the whole."""
        limits = self._limits
        least = limits.body_timeout + (self.received / limits.body_rate if limits.body_rate else float("inf"))
        return min(now + limits.body_timeout, self._began + min(least, limits.body_total))

    def restart(self, now: float) -> None:
        """Count the time from now on: only now has the request's turn come, or was the client told to continue."""
        self._began = now
        self._paused_at = None

    def pause(self, now: float) -> None:
        """We stop reading; until `resume`, no time passes for the client."""
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        if self._paused_at is not None:
            self._began += now - self._paused_at
            self._paused_at = None
