"""The adapter for urllib3, also used for requests and the official client.

`pool_manager` returns a `urllib3.PoolManager` that sends requests for the cluster's address through a `ServerPool`,
which signs them. Requests to other addresses, including redirects, are sent as urllib3 would send them. Redirects are
followed above this layer, so every hop is checked by its own address.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPHeaderDict
from urllib3.poolmanager import SSL_KEYWORDS
from urllib3.util import parse_url

from ostiary.client.access import ClusterAccess
from ostiary.client.retry_on_401 import Headers, send_signed
from ostiary.client.signing import RequestToSign
from ostiary.errors import ConfigurationError, TransportError

# urllib3 keeps one connection per host, so a client shared by threads would redial all the time.
CONNECTIONS_KEPT = 10
SOCKS_PORT = 1080
# A larger file is not read into memory for signing.
SIGNED_FILE_BYTES = 64 * 1024 * 1024


def pool_manager(connection: ClusterAccess, **options: Any) -> PoolManager:
    """Return a `urllib3.PoolManager` that sends the credential. Paths are relative to the cluster's address.

    *options* are those of `urllib3.PoolManager`, except for TLS, which is configured by the kubeconfig only.
    """
    refused = sorted(set(options) & set(SSL_KEYWORDS))
    if refused:
        raise ConfigurationError(
            "the options of the HTTP client cannot be used",
            cause=f"{', '.join(refused)}: TLS is set up from the kubeconfig",
            hint="set certificate-authority, tls-server-name or the user's certificate in the kubeconfig",
        )
    options.setdefault("maxsize", CONNECTIONS_KEPT)
    return PoolManager(connection, _unsigned_manager(connection.proxy, options))


class PoolManager(urllib3.PoolManager):
    """A `urllib3.PoolManager` for one cluster. Paths are relative to the cluster's address."""

    def __init__(self, connection: ClusterAccess, unsigned: urllib3.PoolManager) -> None:
        super().__init__(headers=unsigned.headers)
        self.connection_pool_kw = unsigned.connection_pool_kw
        self.pools = unsigned.pools
        self.proxy, self.proxy_config = unsigned.proxy, unsigned.proxy_config
        self._connection, self._unsigned = connection, unsigned
        self._server_pool = ServerPool(connection, unsigned)
        # The cluster's address in its usual spelling; `is_server` checks the other spellings.
        address = parse_url(connection.server)
        self._usual = (address.scheme, address.host, address.port)

    def __repr__(self) -> str:
        return f"<PoolManager of {self._connection!r}>"

    def clear(self) -> None:
        # urllib3 leaves closing to the garbage collector, and every unreleased response references its pool.
        self._server_pool.close()
        super().clear()

    def connection_from_host(
        self,
        host: str | None,
        port: int | None = None,
        scheme: str | None = "http",
        pool_kwargs: dict[str, Any] | None = None,
    ) -> HTTPConnectionPool:
        if (scheme, host, port) == self._usual:
            return self._server_pool
        # Some callers do not strip the brackets of an IPv6 address.
        if self._connection.is_server(scheme or "http", (host or "").strip("[]"), port):
            return self._server_pool
        return self._unsigned.connection_from_host(host, port, scheme, pool_kwargs)

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, redirect: bool = True, **options: Any
    ) -> BaseHTTPResponse:
        return super().urlopen(method, absolute(self._connection, url), redirect, **options)


class ServerPool(HTTPConnectionPool):
    """The pool for the cluster's address: signs a request and sends it with the pool of the current TLS context."""

    def __init__(self, connection: ClusterAccess, manager: urllib3.PoolManager) -> None:
        address = urlsplit(connection.server)
        # urllib3 expects the brackets of an IPv6 address and strips them where necessary.
        host = address.netloc.rpartition("@")[2].removesuffix(f":{address.port}")
        super().__init__(host, address.port)
        self.scheme = address.scheme
        self._address = (host, address.port, address.scheme)
        self.address = f"{address.scheme}://{host}" + (f":{address.port}" if address.port else "")
        self._connection, self._manager = connection, manager
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._current: tuple[ssl.SSLContext | None, HTTPConnectionPool] | None = None
        # The last headers of `Signing`, and their form for http.client.
        self._encoded: tuple[Headers, Headers] = ((), ())

    def urlopen(  # type: ignore[override]
        self,
        method: str,
        url: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> BaseHTTPResponse:
        if self._connection.request_signer is not None:
            # urllib3 would send the signature of this hop to the next one.
            options.setdefault("redirect", False)
        request = _Urllib3Carrier(self, method, url, body, self.headers if headers is None else headers, options)
        return send_signed(self._connection, request)

    def encoded(self, headers: Headers) -> Headers:
        before, encoded = self._encoded
        if headers is not before:
            # `Signing` returns the same tuple while the credential is the same. http.client writes Latin-1 and all
            # other clients UTF-8; this encodes to the UTF-8 bytes.
            encoded = [(name, value.encode().decode("latin-1")) for name, value in headers]
            self._encoded = (headers, encoded)
        return encoded

    def close(self) -> None:
        with self._lock:
            self._retire()
            self._context = self._current = None

    def current(self) -> HTTPConnectionPool:
        """Return the pool that sends unsigned and presents the current client certificate."""
        current = self._current
        # The manager may have evicted the pool; then its queue is None.
        if current is not None and current[0] is self._connection.ssl_context() and current[1].pool is not None:
            return current[1]
        with self._lock:
            context = self._connection.ssl_context()
            if context is not self._context:
                self._retire()
                self._context = context
            # The context is part of urllib3's pool key, so a new context gets another pool.
            options = None if context is None else {"ssl_context": context}
            pool = self._manager.connection_from_host(*self._address, options)
            self._current = (context, pool)
            return pool

    def _retire(self) -> None:
        pools = self._manager.pools
        for key in pools.keys():  # noqa: SIM118 -- it is no dict, and cannot be iterated itself
            if self._context is not None and key.key_ssl_context is self._context:
                pool = pools.pop(key, None)
                if isinstance(pool, _RetiringPool):
                    pool.retire()


class _RetiringPool(HTTPConnectionPool):
    """A pool that can be retired without failing its users or those waiting for a connection.

    urllib3 can only close a pool; then its users get an error and the waiting threads wait forever.
    """

    _retired = False

    def retire(self) -> None:
        """Close idle connections now, and the others when they are released."""
        self._retired = True
        self._close_idle()

    def _put_conn(self, conn: Any) -> None:
        super()._put_conn(conn)
        # Check after the release: if `retire` runs concurrently, one of the two sees the connection.
        if self._retired:
            self._close_idle()

    def _close_idle(self) -> None:
        if self.pool is not None:
            # Closed connections stay in the queue: urllib3 redials when it takes one.
            with self.pool.mutex:
                for idle in self.pool.queue:
                    if idle is not None:
                        idle.close()


class _Urllib3Carrier:
    """A `Carrier` for one request in terms of urllib3."""

    __slots__ = ("_body", "_headers", "_method", "_options", "_pool", "_position", "_url")

    def __init__(
        self,
        pool: ServerPool,
        method: str,
        url: str,
        body: Any,
        headers: Mapping[str, str],
        options: dict[str, Any],
    ) -> None:
        self._pool, self._method, self._url, self._body = pool, method, url, body
        self._headers, self._options = headers, options
        self._position = options.pop("body_pos", None)
        if self._position is None and body is not None:
            self._position = _position(body)

    @property
    def replayable(self) -> bool:
        # Only types known to be replayable: an exhausted iterable would be sent again as an empty body.
        again = self._body is None or isinstance(self._body, (str, bytes, bytearray, memoryview, list, tuple))
        return again or isinstance(self._position, int)

    def has(self, header: str) -> bool:
        return header.lower() in [name.lower() for name in self._headers]

    def to_sign(self) -> RequestToSign:
        url = self._url if not self._url.startswith("/") else self._pool.address + self._url
        # Encode as urllib3 does before sending.
        encoded = parse_url(url)._replace(fragment=None).url
        headers = tuple((name, value) for name, value in HTTPHeaderDict(self._headers).iteritems())
        return RequestToSign(self._method.upper(), encoded, headers, self._content())

    def _content(self) -> bytes | None:
        body = self._body
        if isinstance(body, (list, tuple)):
            body = b"".join(part.encode() if isinstance(part, str) else part for part in body)
        elif isinstance(self._position, int):
            # Read to the end and rewind: urllib3 reads it again, or the caller does if signing fails.
            body.seek(self._position)
            body = body.read(SIGNED_FILE_BYTES + 1)
            self._body.seek(self._position)
            if len(body) > SIGNED_FILE_BYTES:
                return None
        if isinstance(body, str):
            return body.encode()
        if isinstance(body, (bytes, bytearray, memoryview)):
            return bytes(body)
        return b"" if body is None else None

    def send(self, headers: Headers) -> BaseHTTPResponse:
        signed = _joined(self._headers, self._pool.encoded(headers))
        return self._pool.current().urlopen(
            self._method, self._url, self._body, signed, body_pos=self._position, **self._options
        )

    def status(self, answer: BaseHTTPResponse) -> int:
        return answer.status

    def headers(self, answer: BaseHTTPResponse) -> Mapping[str, Sequence[str]]:
        return {name: answer.headers.getlist(name) for name in answer.headers}

    def discard(self, answer: BaseHTTPResponse) -> None:
        answer.drain_conn()
        answer.release_conn()


def _joined(own: Mapping[str, str], ours: Headers) -> dict[str, str] | HTTPHeaderDict:
    """Return a copy of the caller's headers with ours added."""
    if len(ours) == 1 and not isinstance(own, HTTPHeaderDict):
        # A dict is faster in urllib3. A single header of ours never collides with one of the caller's.
        return {**own, **dict(ours)}
    signed = HTTPHeaderDict(own)
    for name, value in ours:
        # Names may repeat, such as Impersonate-Group.
        signed.add(name, value)
    return signed


def absolute(connection: ClusterAccess, url: str) -> str:
    """Return the URL of a path at the cluster's address, and any other URL unchanged."""
    return connection.server + url if url.startswith("/") else url


def _position(body: Any) -> int | None:
    """Return the position of a seekable file, to send it again from there, or None."""
    try:
        return int(body.tell()) if body.seekable() else None
    except (AttributeError, OSError):
        return None


def _unsigned_manager(proxy: str | None, options: dict[str, Any]) -> urllib3.PoolManager:
    manager = _plain_manager(proxy, options)
    manager.pool_classes_by_scheme = {
        scheme: type(pool_class.__name__, (_RetiringPool, pool_class), {})
        for scheme, pool_class in manager.pool_classes_by_scheme.items()
    }
    return manager


def _plain_manager(proxy: str | None, options: dict[str, Any]) -> urllib3.PoolManager:
    if proxy is None:
        return urllib3.PoolManager(**options)
    parts = urlsplit(proxy)
    if parts.scheme.startswith("socks"):
        return _socks_manager(proxy, options)
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    if parts.scheme == "https":
        # The cluster's authority does not apply to the proxy.
        options.setdefault("proxy_ssl_context", ssl.create_default_context())
    return urllib3.ProxyManager(address, proxy_headers=_proxy_authorization(proxy), **options)


def _proxy_authorization(proxy: str) -> dict[str, str]:
    """Return the header for the user and password of a proxy's URL."""
    parts = urlsplit(proxy)
    if not parts.username:
        return {}
    return urllib3.make_headers(proxy_basic_auth=f"{unquote(parts.username)}:{unquote(parts.password or '')}")


def _socks_manager(proxy: str, options: dict[str, Any]) -> urllib3.PoolManager:
    try:
        from urllib3.contrib.socks import SOCKSProxyManager
    except ImportError:
        raise TransportError(
            "the proxy for this server cannot be used",
            cause="it is a SOCKS proxy, and the package PySocks is not installed",
            hint="pip install 'urllib3[socks]'",
            code="proxy-invalid",
        ) from None
    parts = urlsplit(proxy)
    # As with kubectl, the proxy resolves the name, also for socks5. Names inside a private network require that.
    address = f"socks5h://{parts.netloc}" + ("" if parts.port else f":{SOCKS_PORT}")
    return SOCKSProxyManager(address, **options)
