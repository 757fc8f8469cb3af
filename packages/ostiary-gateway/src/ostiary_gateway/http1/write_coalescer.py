"""Gathers what is written in one turn of the event loop, and sends it all at the end of the turn.

Used by both kinds of connections. Under load a turn serves many requests. Written one by one, each write would wake a
process on the other side and leave the processor's caches cold for the next; gathered, they cost a third less. When
there is little to do a turn is short, and nothing waits for longer than it takes to look at the other connections once.

    connection --- OutgoingTransport (write, close, abort) --- the loop's own transport
                   `-- Outbox: flushes all that have something, once a turn
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress

log = logging.getLogger("ostiary.gateway")

# A part as large as this leaves at once, with all before it: flow control must notice what it brings about.
LARGE_PART = 16 * 1024
MOST_PARTS = 16
# How long a connection that is being closed may take to deliver what was written, in seconds.
LINGER_SECONDS = 10.0
# SO_LINGER with zero seconds: closing sends RST, not FIN.
_RESET = struct.pack("ii", 1, 0)


class Outbox:
    """The transports of one loop that have something to send."""

    __slots__ = ("_call_soon", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        # Whoever is the first to be added calls `flush_soon`.
        self.waiting: list[OutgoingTransport] = []

    def flush_soon(self) -> None:
        self._call_soon(self._flush)

    def _flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        for transport in waiting:
            try:
                transport.flush()
            except Exception as error:
                # A transport that cannot be written to must not keep the others waiting.
                log.error("a connection could not be written to", extra={"cause": type(error).__name__}, exc_info=error)
                transport.abort()


class OutgoingTransport:
    """A transport whose writes are gathered. Everything else is the transport's own, and comes after what was written.

    Only `abort` overtakes: what has not left yet is dropped with the connection.
    """

    __slots__ = ("_inner", "_outbox", "_parts", "is_closing")

    def __init__(self, inner: asyncio.Transport, outbox: Outbox) -> None:
        self._inner = inner
        self._outbox = outbox
        self._parts: list[bytes] = []
        self.is_closing: Callable[[], bool] = inner.is_closing

    def write(self, data: bytes) -> None:
        parts = self._parts
        is_first = not parts
        parts.append(data)
        if len(data) >= LARGE_PART or len(parts) > MOST_PARTS:
            self.flush()
        elif is_first:
            # Written out here: every request does it, twice.
            outbox = self._outbox
            waiting = outbox.waiting
            waiting.append(self)
            if len(waiting) == 1:
                outbox.flush_soon()

    def writelines(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            self.write(part)

    def flush(self) -> None:
        parts = self._parts
        if not parts:
            return
        self._parts = []
        # A transport that is closing takes no more; its protocol has heard of that already.
        if not self.is_closing():
            self._inner.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def is_reading(self) -> bool:
        return self._inner.is_reading()

    def get_extra_info(self, name: str) -> object:
        extra: object = self._inner.get_extra_info(name)
        return extra

    @property
    def is_tls(self) -> bool:
        return self._inner.get_extra_info("ssl_object") is not None

    def peer_certificate(self) -> bytes | None:
        """The other side's certificate (DER); None without TLS, or if it showed none."""
        tls = self._inner.get_extra_info("ssl_object")
        if tls is None:
            return None
        certificate: bytes | None = tls.getpeercert(binary_form=True)
        return certificate

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._parts)) + self._inner.get_write_buffer_size()

    def limit_write_buffer(self, high: int) -> None:
        """Above *high* bytes that wait to leave, the protocol is told to pause."""
        self._inner.set_write_buffer_limits(high)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner.set_protocol(protocol)

    def close(self) -> None:
        self.flush()
        # Closed twice, a TLS transport of asyncio (Python before 3.11.5) can no longer be aborted.
        if not self._inner.is_closing():
            self._inner.close()

    def abort(self) -> None:
        self._parts = []
        self._inner.abort()

    def reset(self) -> None:
        """Abort with RST, so that the other side sees that what it got is incomplete."""
        connection = self._inner.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.abort()
