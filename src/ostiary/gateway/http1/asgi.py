"""Lets an ASGI application answer an exchange.

Called by `doors.admin_api`. Buffers the request and streams the answer. What ASGI cannot carry (upgrades, raw paths)
never gets here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import cast
from urllib.parse import unquote_to_bytes

from ostiary.gateway.http1.body import ClientGone, read_body
from ostiary.gateway.http1.exchange import Exchange, status_line
from ostiary.gateway.http1.headers import Headers

Message = MutableMapping[str, object]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


async def serve(
    application: Application,
    exchange: Exchange,
    *,
    limit: int,
    state: dict[str, object],
    headers: Headers,
) -> int:
    """Let *application* answer; returns the status that was sent. *headers* are added to the answer.

    *state* reaches the application as ``request.state``. Raises `BodyTooLarge` or `ClientGone` before it is called.
    """
    body = await read_body(exchange, limit)
    bridge = _Bridge(exchange, body, headers)
    exchange.responder = bridge
    await application(_scope(exchange, state), bridge.receive, bridge.send)
    return bridge.finish()


def _scope(exchange: Exchange, state: dict[str, object]) -> Message:
    path, _, query = exchange.request.target.partition(b"?")
    connection = exchange.connection
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": exchange.request.method.decode("ascii"),
        "scheme": "https" if connection.transport.get_extra_info("ssl_object") is not None else "http",
        "path": unquote_to_bytes(path).decode("utf-8", "replace"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in exchange.request.headers],
        "client": (connection.remote_address, 0),
        "server": None,
        "state": state,
    }


class _Bridge:
    """The application's receive and send, and the exchange's responder."""

    def __init__(self, exchange: Exchange, body: bytes, headers: Headers) -> None:
        self._exchange = exchange
        self._body: bytes | None = body
        self._headers = headers
        self._status = 0
        self._head = b""
        self._chunked = False
        self._bodiless = False
        self._ended = False
        self._gone = asyncio.Event()
        self._ready = asyncio.Event()
        if not exchange.connection.write_paused:
            self._ready.set()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._gone.is_set():
            raise ClientGone
        if message["type"] == "http.response.start":
            headers = cast("Iterable[tuple[bytes, bytes]]", message.get("headers", ()))
            self._begin(cast("int", message["status"]), headers)
        elif message["type"] == "http.response.body":
            more = bool(message.get("more_body", False))
            self._part(cast("bytes", message.get("body", b"")), more=more)
            if more:
                # After the end the exchange tells us no more when there is room again.
                await self._ready.wait()

    def finish(self) -> int:
        if not self._ended and not self._gone.is_set():
            # The application stopped in the middle: a partial answer must not look complete.
            self._exchange.abort()
        return self._status

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._status = status
        own_headers = [(bytes(name), bytes(value)) for name, value in headers]
        has_length = any(name.lower() == b"content-length" for name, _ in own_headers)
        # Neither 204 nor 304 has a body, so nothing may be said about its length, nor an end of it be sent.
        empty = status in (204, 304)
        self._bodiless = empty or self._exchange.request.method == b"HEAD"
        self._chunked = not has_length and not self._exchange.request.http10 and not empty
        lines = [status_line(status)]
        lines.extend(name + b": " + value + b"\r\n" for name, value in (*own_headers, *self._headers))
        if self._chunked:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        elif not has_length and not empty:
            self._exchange.close_after = True
        lines.append(self._exchange.connection_header())
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    def _part(self, body: bytes, *, more: bool) -> None:
        if self._bodiless:
            body = b""
        data = b"%x\r\n%s\r\n" % (len(body), body) if self._chunked and body else body
        if not more and self._chunked and not self._bodiless:
            data += b"0\r\n\r\n"
        head, self._head = self._head, b""
        if head or data:
            self._exchange.write(head + data)
        if not more:
            self._ended = True
            self._exchange.end()

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
