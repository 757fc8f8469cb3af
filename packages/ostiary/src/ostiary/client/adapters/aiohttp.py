"""The adapter for aiohttp, on which the one for the asynchronous Kubernetes clients stands too.

    session -> sign      -- to the cluster --> send_signed: the credential, the one repetition after a 401
            -> Connector -- to the cluster --> the TLS context in force, and the connection's proxy

Both leave requests to other addresses alone. aiohttp follows redirects above them, so every hop is
judged by its own address.
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

# Each of these would lead requests past the connection's own settings.
DECIDED_BY_THE_CONNECTION = ("base_url", "proxy", "proxy_auth")
SECURE = {"wss": "https", "ws": "http"}
# An event of a watch is one line, as long as the largest object; aiohttp expects 64 KiB.
LINE_BYTES = 2 * 1024 * 1024


def session(connection: ClusterAccess, **options: Any) -> aiohttp.ClientSession:
    """An `aiohttp.ClientSession` that is signed in to the cluster. Call it within a running event loop.

    Its base URL is the cluster: ``get("/api/v1/pods")`` asks it, below the path that its address may have.

    *options* are those of `aiohttp.ClientSession`, except for the proxy and the address, which the
    connection decides. Limits are set with ``connector=Connector(connection, limit=...)``. Middlewares
    given here see each request once, before it is signed; those of a single request replace ours, so
    such a request needs ``sign(connection)`` among them.
    """
    connector = _check(connection, options).pop("connector", None) or Connector(connection)
    options.setdefault("read_bufsize", LINE_BYTES)
    middlewares = (*options.pop("middlewares", ()), sign(connection))
    base = URL(connection.server + "/")
    client = aiohttp.ClientSession(base, connector=connector, middlewares=middlewares, **options)
    # By itself aiohttp takes a path with a leading slash for one of the host, and so would ask somebody else's
    # cluster behind the same address. There is no public way to say otherwise, and the class is not to be derived from.
    client._build_url = partial(_below, base)  # type: ignore[method-assign]
    return client


def _below(base: URL, given: str | URL) -> URL:
    url = URL(given)
    if url.absolute:
        return url
    if base.raw_path == "/":
        return base.join(url)
    # With a dot in front: a colon in the first segment would make a scheme of it.
    text = str(url)
    return base.join(URL(f".{text}", encoded=True) if text.startswith("/") else url)


def sign(connection: ClusterAccess) -> ClientMiddlewareType:
    """A middleware that signs what goes to the cluster, and nothing else."""

    hidden, usual = _HiddenHeaders(), _origin(URL(connection.server))

    async def middleware(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        url = request.url
        if (url.scheme, url.raw_host, url.port) != usual and not _is_server(connection, url):
            return await handler(request)
        return await send_signed_async(connection, _AiohttpCarrier(connection, request, handler, hidden))

    return middleware


class Connector(aiohttp.TCPConnector):
    """A `TCPConnector` that dials the cluster as the connection says, and any other address as usual.

    The TLS context is part of aiohttp's key for connections that are kept, so a new one is not given a
    connection of the old one. Those are closed: the idle ones at once, the others when they come back.
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
        # There is no public way to say this once the request is made, and the credential comes after that.
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
        """Close a connection of an older context: at once if it is idle, else when it is given back."""
        # There is no public way to tell. Should the private one go, all count as busy, and those that are idle
        # stay until aiohttp's own keep-alive ends them.
        busy = getattr(self, "_acquired", None)
        if busy is not None and protocol not in busy:
            _abort(protocol)
        elif not protocol.upgraded:
            protocol.force_close()

    def _set_proxy(self, req: ClientRequest) -> None:
        # A new dict each time: aiohttp adds to it, and keeps connections by its content.
        headers = CIMultiDict(self._proxy_authorization)
        req.update_proxy(self._proxy, None, headers)
        if self._proxy is not None and not req.is_ssl():
            # There is no tunnel, the proxy reads the request itself.
            req.headers.update(headers)

    def _get_ssl_context(self, req: ClientRequest) -> SSLContext | None:
        # aiohttp would greet a proxy over TLS with the request's context. But the cluster's authority says
        # nothing about the proxy, and the client certificate is not for it.
        if isinstance(req.ssl, SealedContext) and not _is_server(self.connection, req.url):
            req._ssl = True
        return super()._get_ssl_context(req)


class _AiohttpCarrier:
    """One request as aiohttp knows it."""

    __slots__ = ("_handler", "_hidden", "_own", "_request")

    def __init__(
        self, connection: ClusterAccess, request: ClientRequest, handler: ClientHandlerType, hidden: _HiddenHeaders
    ) -> None:
        self._request = request
        self._handler = handler
        self._hidden = hidden
        # Never changed: what is sent is a copy.
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
            # What is sent is not what stands here.
            return None
        if isinstance(body, (bytes, bytearray, memoryview)):
            return bytes(body)
        # Of the other payloads some can be read once, and none says for sure that it is not one of them.
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
            # Read to its end, so that its connection can be used again.
            with suppress(aiohttp.ClientError):
                async for _ in answer.content.iter_any():
                    pass


class _Hidden(str):
    """The value of a header that must not be shown: aiohttp's errors and responses print their headers."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class _HiddenHeaders:
    """Our headers as aiohttp is given them, made once for each credential."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Headers, Headers] = ((), ())

    def of(self, headers: Headers) -> Headers:
        before, hidden = self._last
        if headers is not before:
            # The same tuple for as long as the credential is the same.
            hidden = [(name, value if name.startswith("Impersonate-") else _Hidden(value)) for name, value in headers]
            self._last = (headers, hidden)
        return hidden


def _on_release(protocol: ResponseHandler) -> None:
    # A connection that will not be used again: a stream that was left early, or one of an older context.
    if protocol.should_close and not protocol.upgraded:
        protocol.force_close()
        _abort(protocol)


def _abort(protocol: ResponseHandler) -> None:
    # aiohttp would end TLS politely, and wait half a minute for a server that has no ear for it.
    if protocol.transport is not None:
        protocol.transport.abort()


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    """The cluster's address as nearly every request spells it; `_is_server` knows the other spellings."""
    return (url.scheme, url.raw_host, url.port)


def _is_server(connection: ClusterAccess, url: URL) -> bool:
    scheme = SECURE.get(url.scheme, url.scheme)
    if connection.is_server(scheme, url.host or "", url.port):
        return True
    # A name outside ASCII may stand in the kubeconfig in either of its two spellings.
    return connection.is_server(scheme, url.raw_host or "", url.port)


def _proxy(address: str | None) -> tuple[URL | None, dict[str, str]]:
    """The proxy's address without user and password, and the header that tells them."""
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
