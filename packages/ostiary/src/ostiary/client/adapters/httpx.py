"""The adapter for httpx and its successor httpx2, also used for lightkube and kr8s.

    client -> SignedTransport -- to the cluster --> send_signed -> the transport of the current TLS context
                              -- elsewhere -------> a plain client without credentials

Requests are signed below the client: redirects are followed above, so every hop is checked by its own address, and
neither hooks nor ``response.request`` see a token. The code serves both libraries and imports only the one in use.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

from ostiary.client.access import ClusterAccess
from ostiary.client.retry_on_401 import Headers, send_signed, send_signed_async
from ostiary.client.signing import RequestToSign
from ostiary.core.extras import needing
from ostiary.core.tls import SealedContext
from ostiary.errors import ConfigurationError, TransportError

if TYPE_CHECKING:
    import httpx
    from httpx import AsyncByteStream, Request, Response, SyncByteStream

# A threaded or async transport of the library. Idle connections are closed through the same interface.
T = TypeVar("T")


class UseOfTransport:
    """The in-flight requests of a transport, and whether it has been replaced."""

    __slots__ = ("is_retired", "under_way")

    def __init__(self) -> None:
        self.is_retired = False
        self.under_way: dict[object, bool] = {}
        """The in-flight requests, until their response has been read. The value is whether there is a response."""


class ContextTransport(UseOfTransport, Generic[T]):
    """A transport of the library and the TLS context it was made for."""

    __slots__ = ("context", "transport")

    def __init__(self, context: SealedContext | None, transport: T) -> None:
        super().__init__()
        self.context = context
        self.transport = transport


class TransportRotation(Generic[T]):
    """The transport for new requests, and older ones until their last response has been read.

    It decides and never blocks: what is to be closed is returned, because the threaded and the async transport close
    differently.

    Nearly every request finds nothing changed, so requests take no lock. Each writes into `under_way`, which is atomic
    for a dict, and reads `is_retired` afterwards. A rotation sets `is_retired` and reads `under_way` afterwards. So one
    of the two sees the other, and whichever sees a retired transport calls `closable`.
    """

    def __init__(self, context: Callable[[], SealedContext | None], make: Callable[[SealedContext | None], T]) -> None:
        self._context = context
        self._make = make
        self._lock = threading.Lock()
        self._current: ContextTransport[T] | None = None
        self._older: list[ContextTransport[T]] = []

    def begin(self, exchange: object) -> tuple[ContextTransport[T], Sequence[T]]:
        """Return the transport to send a request on, and what to close.

        *exchange* identifies the request in `under_way`, and its response until that has been read.
        """
        entry = self._current
        if entry is not None and entry.context is self._context():
            entry.under_way[exchange] = False
            if not entry.is_retired:
                return entry, ()
            del entry.under_way[exchange]
        return self._begin_anew(exchange)

    def closable(self) -> list[T]:
        """Return what to close: idle connections of retired transports, and retired transports without requests."""
        with self._lock:
            return self._all_closable()

    def close(self) -> list[T]:
        with self._lock:
            entries = [*self._older, *([self._current] if self._current is not None else [])]
            self._current, self._older = None, []
            return [entry.transport for entry in entries]

    def _begin_anew(self, exchange: object) -> tuple[ContextTransport[T], Sequence[T]]:
        with self._lock:
            # Read with the lock held, or a thread with an outdated context could revert a rotation.
            context = self._context()
            entry = self._current
            if entry is None or entry.context is not context:
                if entry is not None:
                    entry.is_retired = True
                    self._older.append(entry)
                entry = self._current = ContextTransport(context, self._make(context))
            entry.under_way[exchange] = False
            return entry, self._all_closable()

    def _all_closable(self) -> list[T]:
        return [closable for entry in tuple(self._older) for closable in self._closable(entry)]

    def _closable(self, entry: ContextTransport[T]) -> list[T]:
        answered = entry.under_way.copy().values()
        # An in-flight request might be assigned the connection that we are about to close as idle.
        if not all(answered):
            return []
        if answered:
            return _idle_connections(entry.transport)
        self._older.remove(entry)
        return [entry.transport]


def _idle_connections(transport: T) -> list[T]:
    """Return connections that will not be reused.

    There is no public API for this. If the private one disappears, they stay open until the last response on this
    transport has been read.
    """
    connections = getattr(getattr(transport, "_pool", None), "connections", [])
    return cast("list[T]", [connection for connection in connections if connection.is_idle()])


# Carriers: one request and its response in terms of httpx, for `retry_on_401`.

# A discarded response is read to its end so that its connection can be reused, up to this many bytes.
DRAINED_BYTES = 64 * 1024
RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
OF_WEBSOCKETS = {b"wss": b"https", b"ws": b"http"}


class _SigningTransport(Protocol):
    """What the threaded and the async transport have in common."""

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
    """The common base of both carriers: a request in terms of the library."""

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
        # Called for every request. `request.headers` would decode all headers first, and any() would start a generator.
        for own, _ in self._own:  # noqa: SIM110
            if len(own) == length and own.lower() == name:
                return True
        return False

    def describe(self) -> RequestToSign:
        request, url = self._request, self._request.url
        # A ByteStream is in memory and can be read again; reading any other stream would consume it.
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
    """One signed request of a threaded transport."""

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
    """One signed request of an async transport."""

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
    """The headers of a request that is sent: the raw list that a transport of the library reads.

    All other attributes of the library's class are built from that list on first access.
    """

    library: ModuleType
    # Set per object. The class attribute shadows the property of the library's class.
    raw: RawHeaders = ()

    def __getattr__(self, name: str) -> object:
        fields = vars(self.library.Headers(self.raw))
        if name not in fields:
            raise AttributeError(name)
        self.__dict__.update(fields)
        return fields[name]


class AnswerStream:
    """The body of a response, which reports when it is closed."""

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


# Transports and clients.

# A client of the library, threaded or async.

C = TypeVar("C")


class _Closable(Protocol):
    def close(self) -> None: ...


class _AsyncClosable(Protocol):
    async def aclose(self) -> None: ...


# The client options that apply to its transports as well.
FOR_TRANSPORTS = ("http1", "http2", "limits", "trust_env")
# Each of these options would bypass the connection's own settings.
DECIDED_BY_THE_CONNECTION = ("base_url", "cert", "proxy", "transport", "verify")


def client(connection: ClusterAccess, *, library: ModuleType | None = None, **options: object) -> httpx.Client:
    """Return an `httpx.Client` that sends the credential to the cluster. Paths are relative to the cluster's address.

    *library* is the module to use: httpx when it is None, or httpx2. *options* are those of `httpx.Client`, except for
    TLS, the proxy and the address, which the connection decides.
    """
    library = _library(library)
    signed = transport(connection, library=library, **_transport_options(options))
    client: httpx.Client = library.Client(base_url=connection.server, transport=signed, **options)
    return client


def async_client(
    connection: ClusterAccess, *, library: ModuleType | None = None, **options: object
) -> httpx.AsyncClient:
    """Like `client`, for an event loop (asyncio or trio)."""
    library = _library(library)
    signed = async_transport(connection, library=library, **_transport_options(options))
    client: httpx.AsyncClient = library.AsyncClient(base_url=connection.server, transport=signed, **options)
    return client


def transport(
    connection: ClusterAccess, *, library: ModuleType | None = None, **options: object
) -> httpx.BaseTransport:
    """Return a transport for a client of your own. *options* are those of `httpx.HTTPTransport`.

    It may be a client's only transport, or be mounted: requests to other addresses are sent as a plain client would
    send them.
    """
    client: httpx.BaseTransport = _classes_for(_library(library)).transport(connection, options)
    return client


def async_transport(
    connection: ClusterAccess, *, library: ModuleType | None = None, **options: object
) -> httpx.AsyncBaseTransport:
    """Like `transport`, for an event loop."""
    client: httpx.AsyncBaseTransport = _classes_for(_library(library)).async_transport(connection, options)
    return client


def _library(library: ModuleType | None) -> ModuleType:
    if library is not None:
        return library
    with needing("httpx", purpose="this client"):
        import httpx

        return httpx


def _transport_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return the client *options* that its transports need as well."""
    _check(options)
    return {name: options[name] for name in FOR_TRANSPORTS if name in options}


def _check(options: Mapping[str, object]) -> None:
    refused = [name for name in DECIDED_BY_THE_CONNECTION if name in options]
    if refused:
        raise ConfigurationError(
            "the options of the HTTP client cannot be used",
            cause=f"{', '.join(refused)}: decided by the kubeconfig and the environment",
            hint="set server, certificate-authority or proxy-url in the kubeconfig",
        )


# --- signing transports ---


class _SignedTransport(Generic[T, C]):
    """What the threaded and the async transport share: routing by address, and the headers."""

    library: ModuleType
    """`httpx` or `httpx2`; set by `_classes_for`."""
    headers: type[SignedHeaders]
    inner: str
    plain: str

    def __init__(self, connection: ClusterAccess, options: dict[str, object]) -> None:
        _check(options)
        self.connection = connection
        self._options = options
        self._proxy = _proxy(connection, self.library)
        http2 = bool(options.get("http2"))
        self._transports = TransportRotation(partial(connection.ssl_context, http2=http2), self._make)
        self._lock = threading.Lock()
        self._elsewhere: C | None = None
        # The cluster's address in its usual spelling; `is_server` checks the other spellings.
        address = self.library.URL(connection.server)
        self._usual = (address.scheme, address.raw_host, address.port)
        # The last headers of `Signing`, and their encoded form.
        self._encoded: tuple[Headers, RawHeaders] = ((), ())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.connection!r}>"

    def _make(self, context: SealedContext | None) -> T:
        kind = getattr(self.library, self.inner)
        # Trust only this context. For a server without TLS there is nothing to verify.
        trusted = False if context is None else context
        transport = kind(**{**self._options, "verify": trusted, "trust_env": False, "proxy": self._proxy})
        return cast("T", transport)

    def _plain_client(self) -> C:
        """Return a client with the library's defaults: the environment's proxies and authorities, and no credential."""
        with self._lock:
            if self._elsewhere is None:
                self._elsewhere = getattr(self.library, self.plain)(**_transport_options(self._options))
            return self._elsewhere

    def _all(self) -> list[T | C]:
        """Return everything that is open, to be closed with this transport."""
        with self._lock:
            elsewhere, self._elsewhere = self._elsewhere, None
        return [*self._transports.close(), *([elsewhere] if elsewhere is not None else [])]

    def is_server(self, url: httpx.URL) -> bool:
        scheme = {"wss": "https", "ws": "http"}.get(url.scheme, url.scheme)
        # The kubeconfig may contain either form of an internationalized name.
        spellings = (url.host, url.raw_host.decode("ascii"))
        return any(self.connection.is_server(scheme, host, url.port) for host in spellings)

    def own_headers(self, request: httpx.Request) -> Headers:
        """Return the headers of a request before it is signed."""
        headers = request.headers
        if not self.connection.compression:
            headers = self.library.Headers(headers)
            headers["Accept-Encoding"] = "identity"
        return [(name.decode("ascii"), value.decode("latin-1")) for name, value in headers.raw]

    def sign(self, request: httpx.Request, own: RawHeaders, headers: Headers) -> httpx.Request:
        before, encoded = self._encoded
        if headers is not before:
            # `Signing` returns the same tuple while the credential is the same.
            encoded = [(name.encode(), value.encode()) for name, value in headers]
            self._encoded = (headers, encoded)
        signed = object.__new__(self.headers)
        signed.raw = [*own, *encoded]
        if not self.connection.compression:
            whole = self.library.Headers(signed.raw)
            whole["Accept-Encoding"] = "identity"
            signed.raw = whole.raw
        # Send a copy: redirects are built from the original request with its original headers. Not copy.copy(), which
        # in httpx uses the pickling hooks and drops the body.
        twin = object.__new__(type(request))
        twin.__dict__ = {**request.__dict__, "headers": signed}
        return twin


class _Transport(_SignedTransport["httpx.HTTPTransport", "httpx.Client"]):
    inner, plain = "HTTPTransport", "Client"
    stream: Callable[[httpx.SyncByteStream, _Transport, UseOfTransport, object], httpx.SyncByteStream]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        if (url.scheme, url.raw_host, url.port) != self._usual and not self.is_server(url):
            return self._plain_client().send(request, stream=True, auth=None)
        return send_signed(self.connection, HttpxCarrier(self, request))

    def deliver(self, request: httpx.Request, own: RawHeaders, headers: Headers) -> httpx.Response:
        exchange = object()
        entry, closable = self._transports.begin(exchange)
        try:
            if closable:
                _close(closable)
            answer = entry.transport.handle_request(self.sign(request, own, headers))
        except BaseException:
            del entry.under_way[exchange]
            if entry.is_retired:
                self.close_retired()
            raise
        entry.under_way[exchange] = True
        if entry.is_retired:
            self.close_retired()
        answer.stream = self.stream(answer.stream, self, entry, exchange)  # type: ignore[arg-type]
        return answer

    def close_retired(self) -> None:
        _close(self._transports.closable())

    def close(self) -> None:
        _close(self._all())


class _AsyncTransport(_SignedTransport["httpx.AsyncHTTPTransport", "httpx.AsyncClient"]):
    inner, plain = "AsyncHTTPTransport", "AsyncClient"
    stream: Callable[[httpx.AsyncByteStream, _AsyncTransport, UseOfTransport, object], httpx.AsyncByteStream]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        if (url.scheme, url.raw_host, url.port) != self._usual and not self.is_server(url):
            return await self._plain_client().send(request, stream=True, auth=None)
        return await send_signed_async(self.connection, AsyncHttpxCarrier(self, request))

    async def deliver(self, request: httpx.Request, own: RawHeaders, headers: Headers) -> httpx.Response:
        exchange = object()
        entry, closable = self._transports.begin(exchange)
        try:
            if closable:
                await _aclose(closable)
            answer = await entry.transport.handle_async_request(self.sign(request, own, headers))
        except BaseException:
            del entry.under_way[exchange]
            if entry.is_retired:
                await self.close_retired()
            raise
        entry.under_way[exchange] = True
        if entry.is_retired:
            await self.close_retired()
        answer.stream = self.stream(answer.stream, self, entry, exchange)  # type: ignore[arg-type]
        return answer

    async def close_retired(self) -> None:
        await _aclose(self._transports.closable())

    async def aclose(self) -> None:
        await _aclose(self._all())


def _close(all_closable: Sequence[_Closable]) -> None:
    for closable in all_closable:
        closable.close()


async def _aclose(all_closable: Sequence[_AsyncClosable]) -> None:
    for closable in all_closable:
        await closable.aclose()


def _proxy(connection: ClusterAccess, library: ModuleType) -> httpx.Proxy | None:
    if connection.proxy is None:
        return None
    scheme = urlsplit(connection.proxy).scheme
    if scheme.startswith("socks5") and find_spec("socksio") is None:
        raise TransportError(
            "the proxy for this server cannot be used",
            cause="it is a SOCKS proxy, and the package socksio is not installed",
            hint=f"pip install '{library.__name__}[socks]'",
            code="proxy-invalid",
        )
    # The system's authorities apply to the proxy, and it must not receive the client certificate.
    proxy = library.Proxy(connection.proxy, ssl_context=ssl.create_default_context() if scheme == "https" else None)
    return cast("httpx.Proxy", proxy)


class _Bound(NamedTuple):
    transport: Callable[[ClusterAccess, dict[str, object]], httpx.BaseTransport]
    async_transport: Callable[[ClusterAccess, dict[str, object]], httpx.AsyncBaseTransport]


@cache
def _classes_for(library: ModuleType) -> _Bound:
    """Return our classes as subclasses of *library*'s, which checks streams and transports by base class."""
    stream = type("SignedStream", (AnswerStream, library.SyncByteStream), {})
    async_stream = type("AsyncSignedStream", (AsyncAnswerStream, library.AsyncByteStream), {})
    headers = type("SignedHeaders", (SignedHeaders, library.Headers), {"library": library})
    ours = {"library": library, "headers": headers}
    return _Bound(
        type("SignedTransport", (_Transport, library.BaseTransport), {**ours, "stream": stream}),
        type("AsyncSignedTransport", (_AsyncTransport, library.AsyncBaseTransport), {**ours, "stream": async_stream}),
    )
