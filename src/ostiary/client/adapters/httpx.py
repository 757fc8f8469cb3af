"""The adapter for httpx and its successor httpx2, on which those for lightkube and kr8s stand too.

    client -> SignedTransport -- to the cluster --> exchange -> the transport of the TLS context in force
                              -- elsewhere -------> a plain client, with nothing of ours

Signing happens below the client: redirects are followed above, so every hop is judged by its own
address, and neither hooks nor ``response.request`` ever see a token. One copy of the code serves both
libraries, and only the one in use is imported.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from ostiary.client.access import ClusterAccess
from ostiary.client.retry_on_401 import Headers, exchange, exchange_async
from ostiary.core.extras import needing
from ostiary.core.tls import SealedContext
from ostiary.errors import ConfigurationError, TransportError

if TYPE_CHECKING:
    import httpx

# What a client has in common with its transports.
FOR_TRANSPORTS = ("http1", "http2", "limits", "trust_env")
# Each of these would lead requests past the connection's own settings.
DECIDED_BY_THE_CONNECTION = ("base_url", "cert", "proxy", "transport", "verify")
# An answer nobody reads is read to its end, so that its connection can be used again; but not for ever.
DRAINED_BYTES = 64 * 1024


def client(connection: ClusterAccess, *, library: ModuleType | None = None, **options: Any) -> httpx.Client:
    """An `httpx.Client` that is signed in to the cluster; ``get("/api")`` asks it.

    *library* is the module to use: httpx when it is None, or httpx2. *options* are those of `httpx.Client`,
    except for TLS, the proxy and the address, which the connection decides.
    """
    library = _chosen(library)
    signed = transport(connection, library=library, **_shared(options))
    made: httpx.Client = library.Client(base_url=connection.server, transport=signed, **options)
    return made


def async_client(connection: ClusterAccess, *, library: ModuleType | None = None, **options: Any) -> httpx.AsyncClient:
    """`client` for an event loop, asyncio's or trio's."""
    library = _chosen(library)
    signed = async_transport(connection, library=library, **_shared(options))
    made: httpx.AsyncClient = library.AsyncClient(base_url=connection.server, transport=signed, **options)
    return made


def transport(connection: ClusterAccess, *, library: ModuleType | None = None, **options: Any) -> httpx.BaseTransport:
    """A transport for a client of your own. *options* are those of `httpx.HTTPTransport`.

    It may be a client's only transport, or be mounted: what is not meant for the cluster goes as a plain
    client would send it.
    """
    made: httpx.BaseTransport = _bound_to(_chosen(library)).transport(connection, options)
    return made


def async_transport(
    connection: ClusterAccess, *, library: ModuleType | None = None, **options: Any
) -> httpx.AsyncBaseTransport:
    """`transport` for an event loop."""
    made: httpx.AsyncBaseTransport = _bound_to(_chosen(library)).async_transport(connection, options)
    return made


def _chosen(library: ModuleType | None) -> ModuleType:
    if library is not None:
        return library
    with needing("httpx", purpose="this client"):
        import httpx

        return httpx


def _shared(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a client's *options* that its transports need as well."""
    _check(options)
    return {name: options[name] for name in FOR_TRANSPORTS if name in options}


def _check(options: Mapping[str, Any]) -> None:
    refused = [name for name in DECIDED_BY_THE_CONNECTION if name in options]
    if refused:
        raise ConfigurationError(
            "the options of the HTTP client cannot be used",
            cause=f"{', '.join(refused)}: decided by the kubeconfig and the environment",
            hint="set server, certificate-authority or proxy-url in the kubeconfig",
        )


# --- the transports behind it, one for each TLS context ---


class _Line:
    """A transport of the library, the TLS context it was made for, and what is under way on it."""

    __slots__ = ("answers", "context", "requests", "transport")

    def __init__(self, context: SealedContext | None, transport: Any) -> None:
        self.context = context
        self.transport = transport
        self.requests = 0
        self.answers = 0


class _Lines:
    """The line for new requests, and older ones until their last answer has been read.

    It decides and never waits: what there is to close is returned, because that is done in one way by
    the threaded transport and in another by the async one.
    """

    def __init__(
        self, context: Callable[[], SealedContext | None], make: Callable[[SealedContext | None], Any]
    ) -> None:
        self._context = context
        self._make = make
        self._lock = threading.Lock()
        self._current: _Line | None = None
        self._older: list[_Line] = []

    def request(self) -> tuple[_Line, list[Any]]:
        """The line to send a request on, and what to close."""
        with self._lock:
            # Asked with the lock held, or a thread with yesterday's answer could undo a rotation.
            context = self._context()
            line, before = self._current, self._current
            if line is None or line.context is not context:
                line = self._current = _Line(context, self._make(context))
                self._older += [before] if before is not None else []
            line.requests += 1
            return line, self._spent(before)

    def answered(self, line: _Line) -> list[Any]:
        return self._count(line, requests=-1, answers=+1)

    def failed(self, line: _Line) -> list[Any]:
        return self._count(line, requests=-1)

    def finished(self, line: _Line) -> list[Any]:
        return self._count(line, answers=-1)

    def close(self) -> list[Any]:
        with self._lock:
            lines = [*self._older, *([self._current] if self._current is not None else [])]
            self._current, self._older = None, []
            return [line.transport for line in lines]

    def _count(self, line: _Line, *, requests: int = 0, answers: int = 0) -> list[Any]:
        with self._lock:
            line.requests += requests
            line.answers += answers
            return [] if line is self._current else self._spent(line)

    def _spent(self, line: _Line | None) -> list[Any]:
        # A request under way might be given the very connection that we are about to close as idle.
        if line is None or line not in self._older or line.requests:
            return []
        if line.answers:
            return _idle_connections(line.transport)
        self._older.remove(line)
        return [line.transport]


def _idle_connections(transport: Any) -> list[Any]:
    """Connections that nobody will use again.

    The library has no public way to them. Should the private one go, they stay open until the last
    answer on this transport has been read.
    """
    connections = getattr(getattr(transport, "_pool", None), "connections", [])
    return [connection for connection in connections if connection.is_idle()]


# --- our transports ---


class _Signed:
    """What the threaded and the async transport share: what goes where, and with which headers."""

    library: ModuleType
    """httpx or httpx2; set by `_bound_to`."""
    inner: str
    plain: str

    def __init__(self, connection: ClusterAccess, options: dict[str, Any]) -> None:
        _check(options)
        self.connection = connection
        self._options = options
        self._proxy = _proxy(connection, self.library)
        http2 = bool(options.get("http2"))
        self._lines = _Lines(lambda: connection.ssl_context(http2=http2), self._make)
        self._lock = threading.Lock()
        self._elsewhere: Any = None
        # The cluster's address as nearly every request spells it; `is_server` knows the other spellings.
        address = self.library.URL(connection.server)
        self._usual = (address.raw_scheme, address.raw_host, address.port)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.connection!r}>"

    def _make(self, context: SealedContext | None) -> Any:
        kind = getattr(self.library, self.inner)
        # The context is all that is trusted; for a server without TLS there is nothing to verify.
        trusted = False if context is None else context
        return kind(**{**self._options, "verify": trusted, "trust_env": False, "proxy": self._proxy})

    def _unsigned(self) -> Any:
        """A client as the library makes it: the environment's proxies and authorities, and nothing of ours."""
        with self._lock:
            if self._elsewhere is None:
                self._elsewhere = getattr(self.library, self.plain)(**_shared(self._options))
            return self._elsewhere

    def _all(self) -> list[Any]:
        """Whatever is open, for whoever closes this transport."""
        with self._lock:
            elsewhere, self._elsewhere = self._elsewhere, None
        return [*self._lines.close(), *([elsewhere] if elsewhere is not None else [])]

    def is_server(self, url: Any) -> bool:
        if (url.raw_scheme, url.raw_host, url.port) == self._usual:
            return True
        scheme = {"wss": "https", "ws": "http"}.get(url.scheme, url.scheme)
        # A name outside ASCII may stand in the kubeconfig in either of its two spellings.
        spellings = (url.host, url.raw_host.decode("ascii"))
        return any(self.connection.is_server(scheme, host, url.port) for host in spellings)

    def signed(self, request: Any, headers: Headers) -> Any:
        # A copy: redirects are made from the request that the client gave us, with the headers it had.
        signed = self.library.Headers(request.headers)
        if len(headers) == 1:
            ((name, value),) = headers
            signed[name] = value
        elif headers:
            # Only so can one name stand on several lines, as groups do.
            signed = self.library.Headers([*signed.raw, *((n.encode(), value.encode()) for n, value in headers)])
        if not self.connection.compression:
            signed["Accept-Encoding"] = "identity"
        twin = object.__new__(type(request))
        # Not copy(): httpx takes that for pickling and leaves the body behind.
        twin.__dict__.update(request.__dict__, headers=signed)
        return twin


class _Transport(_Signed):
    inner, plain = "HTTPTransport", "Client"
    stream: Callable[[Any, Callable[[], None]], Any]

    def handle_request(self, request: Any) -> Any:
        if not self.is_server(request.url):
            return self._unsigned().send(request, stream=True, auth=None)
        return exchange(self.connection, _Carrier(self, request))

    def deliver(self, request: Any) -> Any:
        line, spent = self._lines.request()
        try:
            if spent:
                _close(spent)
            answer = line.transport.handle_request(request)
        except BaseException:
            _close(self._lines.failed(line))
            raise
        if spent := self._lines.answered(line):
            _close(spent)
        answer.stream = self.stream(answer.stream, lambda: _close(self._lines.finished(line)))
        return answer

    def close(self) -> None:
        _close(self._all())


class _AsyncTransport(_Signed):
    inner, plain = "AsyncHTTPTransport", "AsyncClient"
    stream: Callable[[Any, Callable[[], Awaitable[None]]], Any]

    async def handle_async_request(self, request: Any) -> Any:
        if not self.is_server(request.url):
            return await self._unsigned().send(request, stream=True, auth=None)
        return await exchange_async(self.connection, _AsyncCarrier(self, request))

    async def deliver(self, request: Any) -> Any:
        line, spent = self._lines.request()
        try:
            if spent:
                await _aclose(spent)
            answer = await line.transport.handle_async_request(request)
        except BaseException:
            await _aclose(self._lines.failed(line))
            raise
        if spent := self._lines.answered(line):
            await _aclose(spent)
        answer.stream = self.stream(answer.stream, lambda: _aclose(self._lines.finished(line)))
        return answer

    async def aclose(self) -> None:
        await _aclose(self._all())


def _close(spent: list[Any]) -> None:
    for closable in spent:
        closable.close()


async def _aclose(spent: list[Any]) -> None:
    for closable in spent:
        await closable.aclose()


def _proxy(connection: ClusterAccess, library: ModuleType) -> Any:
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
    # The proxy is not the cluster: the machine's authorities vouch for it, and it sees no client certificate.
    return library.Proxy(connection.proxy, ssl_context=ssl.create_default_context() if scheme == "https" else None)


# --- one request, and its answer ---


class _Carried:
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


class _Carrier(_Carried):
    def send(self, headers: Headers) -> Any:
        return self._transport.deliver(self._transport.signed(self._request, headers))

    def discard(self, answer: Any) -> None:
        left = DRAINED_BYTES
        with closing(answer.stream), suppress(self._transport.library.TransportError):
            for part in answer.stream:
                left -= len(part)
                if left < 0:
                    break


class _AsyncCarrier(_Carried):
    async def send(self, headers: Headers) -> Any:
        return await self._transport.deliver(self._transport.signed(self._request, headers))

    async def discard(self, answer: Any) -> None:
        left = DRAINED_BYTES
        async with aclosing(answer.stream), aclosing(aiter(answer.stream)) as parts:
            with suppress(self._transport.library.TransportError):
                async for part in parts:
                    left -= len(part)
                    if left < 0:
                        break


class _Stream:
    """The body of an answer, which tells when it has been read or left."""

    def __init__(self, stream: Any, finished: Callable[[], None]) -> None:
        self._stream = stream
        self._finished: Callable[[], None] | None = finished

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def close(self) -> None:
        finished, self._finished = self._finished, None
        try:
            self._stream.close()
        finally:
            if finished is not None:
                finished()


class _AsyncStream:
    def __init__(self, stream: Any, finished: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._finished: Callable[[], Awaitable[None]] | None = finished

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        finished, self._finished = self._finished, None
        try:
            await self._stream.aclose()
        finally:
            if finished is not None:
                await finished()


class _Bound(NamedTuple):
    transport: Callable[[ClusterAccess, dict[str, Any]], Any]
    async_transport: Callable[[ClusterAccess, dict[str, Any]], Any]


@cache
def _bound_to(library: ModuleType) -> _Bound:
    """Our classes as those of *library*, which knows a stream and a transport by their base class."""
    stream = type("SignedStream", (_Stream, library.SyncByteStream), {})
    async_stream = type("AsyncSignedStream", (_AsyncStream, library.AsyncByteStream), {})
    return _Bound(
        type("SignedTransport", (_Transport, library.BaseTransport), {"library": library, "stream": stream}),
        type(
            "AsyncSignedTransport",
            (_AsyncTransport, library.AsyncBaseTransport),
            {"library": library, "stream": async_stream},
        ),
    )
