"""One request and its answer as httpx knows them: what `retry_on_401` needs of an HTTP library.

Called by the transports of the `httpx` adapter, threaded and async.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar, cast

from ostiary.client.adapters.httpx_rotation import UseOfTransport
from ostiary.client.retry_on_401 import Headers
from ostiary.client.signing.request import RequestToSign

if TYPE_CHECKING:
    # The types of httpx2 have the same shape.
    from httpx import AsyncByteStream, Request, Response, SyncByteStream

# An answer nobody reads is read to its end, so that its connection can be used again; but not for ever.
DRAINED_BYTES = 64 * 1024
RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
OF_WEBSOCKETS = {b"wss": b"https", b"ws": b"http"}


class _SigningTransport(Protocol):
    """What both of our transports can do."""

    library: ModuleType

    def own_headers(self, request: Request) -> Headers: ...


class SyncSender(_SigningTransport, Protocol):
    def deliver(self, request: Request, own: RawHeaders, headers: Headers) -> Response: ...

    def close_retired(self) -> None: ...


class AsyncSender(_SigningTransport, Protocol):
    async def deliver(self, request: Request, own: RawHeaders, headers: Headers) -> Response: ...

    async def close_retired(self) -> None: ...


S = TypeVar("S", bound=_SigningTransport)


class _HttpxRequest(Generic[S]):
    """What the two carriers share: a request as the library knows it."""

    __slots__ = ("_own", "_request", "_transport")

    def __init__(self, transport: S, request: Request) -> None:
        self._transport = transport
        self._request = request
        self._own = request.headers.raw

    @property
    def replayable(self) -> bool:
        return isinstance(self._request.stream, self._transport.library.ByteStream)

    def has(self, header: str) -> bool:
        name, length = header.lower().encode(), len(header)
        # Asked of every request. The library's own way decodes all headers first, and any() would start a generator.
        for own, _ in self._own:  # noqa: SIM110
            if len(own) == length and own.lower() == name:
                return True
        return False

    def describe(self) -> RequestToSign:
        request, url = self._request, self._request.url
        # What is read here stays in memory and can be read again; any other stream is spent by that.
        content = b"".join(request.stream) if self.replayable else None  # type: ignore[arg-type]
        address = OF_WEBSOCKETS.get(url.raw_scheme, url.raw_scheme) + b"://" + url.netloc + url.raw_path
        headers = tuple(self._transport.own_headers(request))
        return RequestToSign(request.method, address.decode("ascii"), headers, content)

    def status(self, answer: Response) -> int:
        return answer.status_code

    def headers(self, answer: Response) -> Mapping[str, Sequence[str]]:
        grouped: dict[str, list[str]] = {}
        for name, value in answer.headers.multi_items():
            grouped.setdefault(name.title(), []).append(value)
        return grouped


class HttpxCarrier(_HttpxRequest[SyncSender]):
    __slots__ = ()

    def to_sign(self) -> RequestToSign:
        return self.describe()

    def send(self, headers: Headers) -> Response:
        return self._transport.deliver(self._request, self._own, headers)

    def discard(self, answer: Response) -> None:
        bytes_left = DRAINED_BYTES
        stream = cast("SyncByteStream", answer.stream)
        with closing(stream), suppress(self._transport.library.TransportError):
            for part in stream:
                bytes_left -= len(part)
                if bytes_left < 0:
                    break


class AsyncHttpxCarrier(_HttpxRequest[AsyncSender]):
    __slots__ = ()

    async def to_sign(self) -> RequestToSign:
        return self.describe()

    async def send(self, headers: Headers) -> Response:
        return await self._transport.deliver(self._request, self._own, headers)

    async def discard(self, answer: Response) -> None:
        bytes_left = DRAINED_BYTES
        stream = cast("AsyncByteStream", answer.stream)
        async with aclosing(stream), aclosing(cast("AsyncGenerator[bytes, None]", aiter(stream))) as parts:
            with suppress(self._transport.library.TransportError):
                async for part in parts:
                    bytes_left -= len(part)
                    if bytes_left < 0:
                        break


class SignedHeaders:
    """The headers of a request that is sent: the list that a transport of the library reads.

    Whatever else the library's own class has is made from that list when somebody asks for it.
    """

    library: ModuleType
    # Set for each object. That it is here takes the place of the property that the library's class has.
    raw: RawHeaders = ()

    def __getattr__(self, name: str) -> object:
        fields = vars(self.library.Headers(self.raw))
        if name not in fields:
            raise AttributeError(name)
        self.__dict__.update(fields)
        return fields[name]


class AnswerStream:
    """The body of an answer, which tells when it has been read or left."""

    def __init__(self, stream: SyncByteStream, transport: SyncSender, use: UseOfTransport, exchange: object) -> None:
        self._stream, self._transport, self._use, self._exchange = stream, transport, use, exchange

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._use.under_way.pop(self._exchange, None)
            if self._use.is_retired:
                self._transport.close_retired()


class AsyncAnswerStream:
    def __init__(self, stream: AsyncByteStream, transport: AsyncSender, use: UseOfTransport, exchange: object) -> None:
        self._stream, self._transport, self._use, self._exchange = stream, transport, use, exchange

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            self._use.under_way.pop(self._exchange, None)
            if self._use.is_retired:
                await self._transport.close_retired()
