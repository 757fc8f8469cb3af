"""Stream a response of the gateway itself, as fast as the client reads it."""

from __future__ import annotations

import asyncio

from ostiary_gateway.http1.body import ClientGone
from ostiary_gateway.http1.exchange import Exchange, status_line
from ostiary_gateway.http1.headers import Headers


class StreamedAnswer:
    """A response without a known length, such as events. Call `begin`, `send` for each part, `end`, then `finish`.

    It is the responder of the exchange, so it notices when the client disconnects or does not keep up.
    """

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
        """Prepare the head. It is sent with the first part."""
        self.status = status
        has_length = any(name.lower() == b"content-length" for name, _ in headers)
        # 204 and 304 have no body, and therefore no framing.
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
        """Send a part, and wait until there is room for the next. Raises `ClientGone`.

        With *seconds*, raises `TimeoutError` if the client does not read enough within this time.
        """
        if self._gone.is_set():
            raise ClientGone
        self._write(data)
        async with asyncio.timeout(seconds):
            await self._ready.wait()

    def end(self, data: bytes = b"") -> None:
        """Send the last part."""
        self._write(data, last=True)
        self._ended = True
        self._exchange.end()

    def finish(self) -> int:
        """Return the status that was sent. Abort an incomplete response, so that it does not look complete."""
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

    # --- Responder ---

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
