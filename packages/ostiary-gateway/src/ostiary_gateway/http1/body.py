"""Request bodies: reading a complete body, and limits on how bodies arrive."""

from __future__ import annotations

import asyncio

from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.request_head import RequestRefused, ServerLimits


class BodyTooLarge(Exception):
    """The body exceeds the limit of this endpoint."""


class ClientGone(Exception):
    """The client disconnected."""


async def read_body(exchange: Exchange, limit: int) -> bytes:
    """Read the complete body; raises `BodyTooLarge` above *limit* bytes and `ClientGone` if the client disconnects."""
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
    """Collects a body. Still notices a disconnect afterwards."""

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


# Chunks allowed in any case, bytes of data per additional chunk, and additional chunks per second: an interactive
# client may send one chunk per key press.
FREE_CHUNKS = 4096
CHUNK_BYTES = 16
CHUNKS_PER_SECOND = 100
# Chunk sizes and extensions: bytes allowed in any case, and bytes per byte of data.
FREE_OVERHEAD = 64 * 1024
OVERHEAD_RATIO = 16


class IncomingBody:
    """A request body being received: enforces a minimum rate, a total time and a limit on small chunks.

    `received` is the number of data bytes. The pieces of one read are delivered together, so that a body of many tiny
    chunks costs little more than one of few large chunks. While reading is paused, no time passes. Times are those of
    the event loop. The checks raise `RequestRefused`.
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
        """Add a piece of the current read."""
        self._pieces.append(piece)
        self.received += len(piece)
        if len(self._pieces) > self._allowed:
            self._check_chunks()

    def take(self) -> bytes:
        """Return the pieces since the last call, joined."""
        pieces, self._pieces = self._pieces, []
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._chunks += len(pieces)
        if self.received > self._limits.body_bytes:
            raise RequestRefused(413, "the request's body is too large")
        return data

    def after_read(self, size: int, now: float) -> None:
        """Check the limits after a read of *size* bytes."""
        self._wire += size
        if self._chunked:
            if self._wire - self.received > FREE_OVERHEAD + OVERHEAD_RATIO * self.received:
                raise RequestRefused(400, "the request's body has too much beside its data")
            self._by_time = int((now - self._began) * CHUNKS_PER_SECOND)
            self._allowed = self._allowed_chunks()

    def _allowed_chunks(self) -> int:
        """Return the number of additional chunks that are allowed."""
        return FREE_CHUNKS + self.received // CHUNK_BYTES + self._by_time - self._chunks

    def _check_chunks(self) -> None:
        # Includes the data of this read.
        self._allowed = self._allowed_chunks()
        if self._chunked and len(self._pieces) > self._allowed:
            raise RequestRefused(400, "the request's body has too many small chunks")

    # --- time ---

    def deadline(self, now: float) -> float:
        """Return when the client is late: with the next piece, with the minimum rate, or in total."""
        limits = self._limits
        least = limits.body_timeout + (self.received / limits.body_rate if limits.body_rate else float("inf"))
        return min(now + limits.body_timeout, self._began + min(least, limits.body_total))

    def restart(self, now: float) -> None:
        """Restart the time: the request's turn has come, or the client was sent a 100 Continue."""
        self._began = now
        self._paused_at = None

    def pause(self, now: float) -> None:
        """Suspend the time until `resume`, because reading is paused."""
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        if self._paused_at is not None:
            self._began += now - self._paused_at
            self._paused_at = None
