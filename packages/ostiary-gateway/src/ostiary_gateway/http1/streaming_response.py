"""Sends an answer of our own piece by piece, as fast as the client reads it.

Called by `http1.asgi` and by the login, for what has no length beforehand, such as events. It is the exchange's
responder meanwhile, and so learns when the client is gone or does not keep up.
"""

from __future__ import annotations

import asyncio

from ostiary_gateway.http1.body import ClientGone
from ostiary_gateway.http1.exchange import Exchange, status_line
from ostiary_gateway.http1.headers import Headers


class StreamedAnswer:
    """Call `begin`, then `send` for each piece, then `finish`."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.status = 0
        self._head = b""
        self._chunked = False
        self._bodiless = False
        self._ended = False
        self._gone = asyncio.Event()
        self._ready = asyncio.Event()
        if not exchange.connection.write_paused:
            self._ready.set()
        exchange.responder = self

    @property
    def is_gone(self) -> bool:
        return self._gone.is_set()

    async def wait_until_gone(self) -> None:
        await self._gone.wait()

    def begin(self, status: int, headers: Headers) -> None:
        """What the head says goes out with the first piece."""
        self.status = status
        has_length = any(name.lower() == b"content-length" for name, _ in headers)
        # Neither 204 nor 304 has a body, so nothing may be said about its length, nor an end of it be sent.
        empty = status in (204, 304)
        self._bodiless = empty or self._exchange.request.method == b"HEAD"
        self._chunked = not has_length and not self._exchange.request.http10 and not empty
        lines = [status_line(status)]
        lines.extend(name + b": " + value + b"\r\n" for name, value in headers)
        if self._chunked:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        elif not has_length and not empty:
            self._exchange.close_after = True
        lines.append(self._exchange.connection_header())
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    async def send(self, data: bytes, *, seconds: float | None = None) -> None:
        """Send a piece, and wait until there is room for the next. Raises `ClientGone`.

        With *seconds*, raises `TimeoutError` if the client has not read enough of it by then.
        """
        if self._gone.is_set():
            raise ClientGone
        self._write(data)
        async with asyncio.timeout(seconds):
            await self._ready.wait()

    def end(self, data: bytes = b"") -> None:
        """Send the last piece."""
        self._write(data, last=True)
        self._ended = True
        self._exchange.end()

    def finish(self) -> int:
        """The status that was sent. An answer that did not get to its end must not look complete: it is cut."""
        if not self._ended and not self._gone.is_set():
            self._exchange.abort()
        return self.status

    def _write(self, data: bytes, *, last: bool = False) -> None:
        if self._bodiless:
            data = b""
        if self._chunked and data:
            data = b"%x\r\n%s\r\n" % (len(data), data)
        if last and self._chunked and not self._bodiless:
            data += b"0\r\n\r\n"
        head, self._head = self._head, b""
        if head or data:
            self._exchange.write(head + data)

    # --- the exchange's responder ---

    def body(self, data: bytes) -> None:
        pass

    def body_end(self) -> None:
        pass

    def client_lost(self) -> None:
        self._gone.set()
        self._ready.set()

    def client_full(self) -> None:
        self._ready.clear()

    def client_ready(self) -> None:
        self._ready.set()
