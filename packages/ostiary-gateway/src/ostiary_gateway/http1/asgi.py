"""Serve an exchange with an ASGI application. The request is buffered, the response streamed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import cast
from urllib.parse import unquote_to_bytes

from ostiary_gateway.http1.body import ClientGone, read_body
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.streaming_response import StreamedAnswer

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
    """Call *application* and return the status that was sent. *headers* are added to the response.

    *state* is available to the application as ``request.state``. Raises `BodyTooLarge` or `ClientGone` before the call.
    """
    body = await read_body(exchange, limit)
    bridge = _Bridge(exchange, body, headers)
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
    """The application's receive and send."""

    def __init__(self, exchange: Exchange, body: bytes, headers: Headers) -> None:
        self._answer = StreamedAnswer(exchange)
        self._body: bytes | None = body
        self._headers = headers

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._answer.wait_until_gone()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._answer.is_gone:
            raise ClientGone
        if message["type"] == "http.response.start":
            headers = cast("Iterable[tuple[bytes, bytes]]", message.get("headers", ()))
            own_headers = [(bytes(name), bytes(value)) for name, value in headers]
            self._answer.begin(cast("int", message["status"]), [*own_headers, *self._headers])
        elif message["type"] == "http.response.body":
            body = cast("bytes", message.get("body", b""))
            if message.get("more_body", False):
                await self._answer.send(body)
            else:
                self._answer.end(body)

    def finish(self) -> int:
        return self._answer.finish()
