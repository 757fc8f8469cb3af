"""The adapter for aiohttp, also used for the asynchronous Kubernetes clients.

    session -> sign      -- to the cluster --> send_signed: the credential, one retry after a 401
            -> Connector -- to the cluster --> the current TLS context, and the connection's proxy

Requests to other addresses are unchanged. aiohttp follows redirects above this layer, so every hop is checked by its
own address.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from ssl import SSLContext
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import aiohttp
from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse
from multidict import CIMultiDict
from yarl import URL

from ostiary.client.access import ClusterAccess
from ostiary.client.retry_on_401 import Headers, send_signed_async
from ostiary.client.signing import RequestToSign
from ostiary.core.tls import SealedContext
from ostiary.errors import ConfigurationError, TransportError

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection as Acquired
    from aiohttp.tracing import Trace

# Each of these options would bypass the connection's own settings.
DECIDED_BY_THE_CONNECTION = ("base_url", "proxy", "proxy_auth")
SECURE = {"wss": "https", "ws": "http"}
# A watch event is one line, as long as the largest object. aiohttp's default is 64 KiB.
LINE_BYTES = 2 * 1024 * 1024


def session(connection: ClusterAccess, **options: Any) -> aiohttp.ClientSession:
    """Return an `aiohttp.ClientSession` that sends the credential to the cluster. Call it within a running event loop.

    The base URL is the cluster: ``get("/api/v1/pods")`` is resolved against it, below the path of its address if there
    is one. *options* are those of `aiohttp.ClientSession`, except for the proxy and the address, which the connection
    decides. Set limits with ``connector=Connector(connection, limit=...)``. Middlewares given here see each request
    once, before it is signed. Middlewares of a single request replace ours, so such a request needs
    ``sign(connection)`` among them.
    """
    connector = _check(connection, options).pop("connector", None) or Connector(connection)
    options.setdefault("read_bufsize", LINE_BYTES)
    middlewares = (*options.pop("middlewares", ()), sign(connection))
    base = URL(connection.server + "/")
    client = aiohttp.ClientSession(base, connector=connector, middlewares=middlewares, **options)
    # aiohttp resolves a path with a leading slash against the host, which may be another cluster behind the same
    # address. There is no public way to change that, and subclassing ClientSession is not supported.
    client._build_url = partial(_below, base)  # type: ignore[method-assign]
    return client


def _below(base: URL, given: str | URL) -> URL:
    url = URL(given)
    if url.absolute:
        return url
    if base.raw_path == "/":
        return base.join(url)
    # The leading dot keeps a colon in the first segment from being parsed as a scheme.
    text = str(url)
    return base.join(URL(f".{text}", encoded=True) if text.startswith("/") else url)


def sign(connection: ClusterAccess) -> ClientMiddlewareType:
    """Return a middleware that signs requests to the cluster and passes all others on unchanged."""

    hidden, usual = _HiddenHeaders(), _origin(URL(connection.server))

    async def middleware(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        url = request.url
        if (url.scheme, url.raw_host, url.port) != usual and not _is_server(connection, url):
            return await handler(request)
        return await send_signed_async(connection, _AiohttpCarrier(connection, request, handler, hidden))

    return middleware


class Connector(aiohttp.TCPConnector):
    """A `TCPConnector` that dials the cluster according to the connection, and any other address as usual.

    The TLS context is part of aiohttp's pool key, so a new context never reuses a connection of the old one. The old
    connections are closed: idle ones immediately, others when they are released.
    """

    def __init__(self, connection: ClusterAccess, **options: Any) -> None:
        self._proxy, self._proxy_authorization = _proxy(connection.proxy)
        self.connection = connection
        self._usual = _origin(URL(connection.server))
        self._context: SealedContext | None = None
        self._dialled: WeakSet[ResponseHandler] = WeakSet()
        super().__init__(**options)

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 -- the signature is aiohttp's
    ) -> Acquired:
        url = req.url
        if (url.scheme, url.raw_host, url.port) != self._usual and not _is_server(self.connection, url):
            return await super().connect(req, traces, timeout)
        context = self.connection.ssl_context()
        if context is not self._context:
            self._rotate(context)
        # The credential is obtained after the request object exists, and aiohttp has no public way to set this later.
        req._ssl = True if context is None else context
        if self._proxy is not None or req.proxy is not None:
            self._set_proxy(req)
        acquired = await super().connect(req, traces, timeout)
        protocol = acquired.protocol
        if protocol is not None:
            if protocol not in self._dialled:
                self._dialled.add(protocol)
            acquired.add_callback(partial(_on_release, protocol))
        return acquired

    def _rotate(self, context: SealedContext | None) -> None:
        self._context = context
        for protocol in self._dialled:
            self._retire(protocol)
        self._dialled.clear()

    def _retire(self, protocol: ResponseHandler) -> None:
        """Close a connection of an older context: immediately if it is idle, else when it is released."""
        # Private attribute, because there is no public way to find out. If it disappears, all connections count as
        # busy, and idle ones stay open until aiohttp's keep-alive ends them.
        busy = getattr(self, "_acquired", None)
        if busy is not None and protocol not in busy:
            _abort(protocol)
        elif not protocol.upgraded:
            protocol.force_close()

    def _set_proxy(self, req: ClientRequest) -> None:
        # A new dict each time: aiohttp modifies it, and uses its content as a pool key.
        headers = CIMultiDict(self._proxy_authorization)
        req.update_proxy(self._proxy, None, headers)
        if self._proxy is not None and not req.is_ssl():
            # Without a tunnel the proxy reads the request itself.
            req.headers.update(headers)

    def _get_ssl_context(self, req: ClientRequest) -> SSLContext | None:
        # aiohttp would use the request's context for TLS to the proxy. But the cluster's authority does not apply to
        # the proxy, and the client certificate must not be sent to it.
        if isinstance(req.ssl, SealedContext) and not _is_server(self.connection, req.url):
            req._ssl = True
        return super()._get_ssl_context(req)


class _AiohttpCarrier:
    """One request in terms of aiohttp."""

    __slots__ = ("_handler", "_hidden", "_own", "_request")

    def __init__(
        self, connection: ClusterAccess, request: ClientRequest, handler: ClientHandlerType, hidden: _HiddenHeaders
    ) -> None:
        self._request = request
        self._handler = handler
        self._hidden = hidden
        # Never modified: a copy is sent.
        self._own = request.headers
        if not connection.compression:
            self._own = self._own.copy()
            self._own["Accept-Encoding"] = "identity"

    @property
    def replayable(self) -> bool:
        body = self._request.body
        return isinstance(body, bytes) or not body.consumed

    def has(self, header: str) -> bool:
        return header in self._own

    async def to_sign(self) -> RequestToSign:
        request = self._request
        url = request.url.with_scheme(SECURE.get(request.url.scheme, request.url.scheme)).with_fragment(None)
        return RequestToSign(request.method, str(url), tuple(self._own.items()), await self._content())

    async def _content(self) -> bytes | None:
        body = self._request.body
        if self._request.compress:
            # Compression changes the body when it is sent.
            return None
        if isinstance(body, (bytes, bytearray, memoryview)):
            return bytes(body)
        # Some other payloads can be read only once, and none declares reliably that it is not one of them.
        return await body.as_bytes() if isinstance(body, aiohttp.BytesPayload) else None

    async def send(self, headers: Headers) -> ClientResponse:
        signed = self._own.copy()
        signed.extend(self._hidden.of(headers))
        self._request.headers = signed
        return await self._handler(self._request)

    def status(self, answer: ClientResponse) -> int:
        return answer.status

    def headers(self, answer: ClientResponse) -> Mapping[str, Sequence[str]]:
        return {name.title(): answer.headers.getall(name) for name in answer.headers}

    async def discard(self, answer: ClientResponse) -> None:
        async with answer:
            # Read to the end, so that the connection can be reused.
            with suppress(aiohttp.ClientError):
                async for _ in answer.content.iter_any():
                    pass


class _Hidden(str):
    """A header value whose repr is masked, because aiohttp's errors and responses print their headers."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class _HiddenHeaders:
    """The connection's headers with masked values, built once per credential."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Headers, Headers] = ((), ())

    def of(self, headers: Headers) -> Headers:
        before, hidden = self._last
        if headers is not before:
            # `Signing` returns the same tuple while the credential is the same.
            hidden = [(name, value if name.startswith("Impersonate-") else _Hidden(value)) for name, value in headers]
            self._last = (headers, hidden)
        return hidden


def _on_release(protocol: ResponseHandler) -> None:
    # Abort connections that cannot be reused: an abandoned stream, or one of an older context.
    if protocol.should_close and not protocol.upgraded:
        protocol.force_close()
        _abort(protocol)


def _abort(protocol: ResponseHandler) -> None:
    # aiohttp would wait half a minute for the TLS shutdown of a server that does not respond.
    if protocol.transport is not None:
        protocol.transport.abort()


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    """The cluster's address in its usual spelling; `_is_server` checks the other spellings."""
    return (url.scheme, url.raw_host, url.port)


def _is_server(connection: ClusterAccess, url: URL) -> bool:
    scheme = SECURE.get(url.scheme, url.scheme)
    if connection.is_server(scheme, url.host or "", url.port):
        return True
    # The kubeconfig may contain either form of an internationalized name.
    return connection.is_server(scheme, url.raw_host or "", url.port)


def _proxy(address: str | None) -> tuple[URL | None, dict[str, str]]:
    """Return the proxy's address without user and password, and the header that carries them."""
    if address is None:
        return None, {}
    url = URL(address)
    if url.scheme not in ("http", "https"):
        raise TransportError(
            "the proxy for this server cannot be used",
            cause="it is a SOCKS proxy, which aiohttp does not support",
            hint="use an http:// proxy, or one of the clients on httpx or urllib3",
            code="proxy-invalid",
        )
    if url.user is None:
        return url, {}
    user_and_password = b64encode(f"{url.user}:{url.password or ''}".encode()).decode("ascii")
    return url.with_user(None), {"Proxy-Authorization": _Hidden("Basic " + user_and_password)}


def _check(connection: ClusterAccess, options: dict[str, Any]) -> dict[str, Any]:
    refused = [name for name in DECIDED_BY_THE_CONNECTION if name in options]
    if refused:
        raise ConfigurationError(
            "the options of the HTTP client cannot be used",
            cause=f"{', '.join(refused)}: decided by the kubeconfig and the environment",
            hint="set server or proxy-url in the kubeconfig",
        )
    connector = options.get("connector")
    if connector is not None and not (isinstance(connector, Connector) and connector.connection is connection):
        raise ConfigurationError(
            "the options of the HTTP client cannot be used",
            cause="connector: it would not connect to the cluster as the kubeconfig says",
            hint="make it with Connector(connection, ...) of ostiary.client.adapters.aiohttp; same options",
        )
    return options
