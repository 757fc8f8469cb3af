"""Coalesce the writes of one event loop iteration, and send them at its end.

    connection --- OutgoingTransport (write, close, abort) --- the loop's own transport
                   `-- Outbox: flushes all transports with pending data once per iteration

Under load an iteration serves many requests. Separate writes would each wake the peer's process and leave the CPU
caches cold; coalesced writes cost a third less. Without load an iteration is short, so latency hardly increases.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress

log = logging.getLogger("ostiary.gateway")

# A part of this size is flushed immediately, so that flow control notices its effect.
LARGE_PART = 16 * 1024
MOST_PARTS = 16
# How long a closing connection may take to deliver its data, in seconds.
LINGER_SECONDS = 10.0
# SO_LINGER with a timeout of zero: closing sends RST, not FIN.
_RESET = struct.pack("ii", 1, 0)


class Outbox:
    """The transports of one event loop with pending data."""

    __slots__ = ("_call_soon", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        # The first transport added in a loop iteration schedules the flush.
        self.waiting: list[OutgoingTransport] = []

    def flush_soon(self) -> None:
        self._call_soon(self._flush)

    def _flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        for transport in waiting:
            try:
                transport.flush()
            except Exception as error:
                # A transport that cannot be written to must not block the others.
                log.error("a connection could not be written to", extra={"cause": type(error).__name__}, exc_info=error)
                transport.abort()


class OutgoingTransport:
    """A transport with coalesced writes. Other operations take effect after pending writes.

    `abort` is the exception: it discards pending data.
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
            # Inlined: this runs twice per request.
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
        # A closing transport accepts no data; its protocol was notified.
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
        """Return the peer's DER certificate; None without TLS or certificate."""
        tls = self._inner.get_extra_info("ssl_object")
        if tls is None:
            return None
        certificate: bytes | None = tls.getpeercert(binary_form=True)
        return certificate

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._parts)) + self._inner.get_write_buffer_size()

    def limit_write_buffer(self, high: int) -> None:
        """Pause the protocol above *high* bytes of unsent data."""
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
        """Abort with RST, so that the peer notices that the data is incomplete."""
        connection = self._inner.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.abort()
