"""One request and its answer as httpx knows them: what `retry_on_401` needs of an HTTP library.

Called by the transports of the `httpx` adapter, threaded and async.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from typing import Any

from ostiary.client.retry_on_401 import Headers

# An answer nobody reads is read to its end, so that its connection can be used again; but not for ever.
DRAINED_BYTES = 64 * 1024


class _HttpxRequest:
    """What the two carriers share: a request as the library knows it."""

    def __init__(self, transport: Any, request: Any) -> None:
        self._transport = transport
        self._request = request

    @property
    def replayable(self) -> bool:
        return isinstance(self._request.stream, self._transport.library.ByteStream)

    def has(self, header: str) -> bool:
        return header in self._request.headers

    def status(self, answer: Any) -> int:
        status: int = answer.status_code
        return status

    def headers(self, answer: Any) -> Mapping[str, Sequence[str]]:
        grouped: dict[str, list[str]] = {}
        for name, value in answer.headers.multi_items():
            grouped.setdefault(name.title(), []).append(value)
        return grouped


class HttpxCarrier(_HttpxRequest):
    def send(self, headers: Headers) -> Any:
        return self._transport.deliver(self._transport.sign(self._request, headers))

    def discard(self, answer: Any) -> None:
        bytes_left = DRAINED_BYTES
        with closing(answer.stream), suppress(self._transport.library.TransportError):
            for part in answer.stream:
                bytes_left -= len(part)
                if bytes_left < 0:
                    break


class AsyncHttpxCarrier(_HttpxRequest):
    async def send(self, headers: Headers) -> Any:
        return await self._transport.deliver(self._transport.sign(self._request, headers))

    async def discard(self, answer: Any) -> None:
        bytes_left = DRAINED_BYTES
        async with aclosing(answer.stream), aclosing(aiter(answer.stream)) as parts:
            with suppress(self._transport.library.TransportError):
                async for part in parts:
                    bytes_left -= len(part)
                    if bytes_left < 0:
                        break


class AnswerStream:
    """The body of an answer, which tells when it has been read or left."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end: Callable[[], None] | None = on_end

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def close(self) -> None:
        on_end, self._on_end = self._on_end, None
        try:
            self._stream.close()
        finally:
            if on_end is not None:
                on_end()


class AsyncAnswerStream:
    def __init__(self, stream: Any, on_end: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._on_end: Callable[[], Awaitable[None]] | None = on_end

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        on_end, self._on_end = self._on_end, None
        try:
            await self._stream.aclose()
        finally:
            if on_end is not None:
                await on_end()
