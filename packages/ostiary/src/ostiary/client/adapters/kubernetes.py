"""The adapter for the official client: an `ApiClient` whose calls go through our urllib3 pools.

That covers ordinary calls, watches and the dynamic client. `kubernetes.stream` (exec, attach, port-forward) dials by
itself, with files for TLS, without impersonation, and would forward the token on a redirect. For our clients, and no
others, this module opens the websockets instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import NoReturn, TypedDict
from urllib.parse import unquote, urlsplit

import kubernetes.client
import websocket
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import ws_client

from ostiary.client.access import ClusterAccess, Untyped
from ostiary.client.adapters.urllib3 import pool_manager
from ostiary.client.retry_on_401 import SERVER_ERROR, Headers, send_signed
from ostiary.client.signing import RequestToSign
from ostiary.errors import TransportError

# Websockets of `kubernetes.stream`, opened with the connection's TLS context, headers and proxy.
#
# The library has no parameter for any of this, so its `create_websocket` is replaced, but only while one of our calls
# is in flight. Importing this module changes nothing. The library's websockets support ``http://`` proxies only; with
# any other proxy, streams are rejected.

NOWHERE = "unused.invalid"
Dial = Callable[[str], websocket.WebSocket]


class Dialling:
    """Selects the function that opens the websocket of the current call in this thread or task.

    While one of our calls is in flight, `create_websocket` of the library is replaced. All other calls are passed on to
    the previous function, so other clients are not affected, in any thread.
    """

    def __init__(self) -> None:
        self._dial: ContextVar[Dial | None] = ContextVar("dial", default=None)
        self._lock = threading.Lock()
        self._calls = 0
        self._original: Callable[..., websocket.WebSocket] = ws_client.create_websocket
        self._is_installed = False

    @contextmanager
    def through(self, dial: Dial) -> Iterator[None]:
        """Within this context, the library opens a websocket with *dial*."""
        self._install()
        mark = self._dial.set(dial)
        try:
            yield
        finally:
            self._dial.reset(mark)
            self._uninstall()

    def _install(self) -> None:
        with self._lock:
            self._calls += 1
            current = ws_client.create_websocket
            is_wrapped = self._is_installed and current is not self._original
            if current != self._create and not is_wrapped:
                self._original = current
                ws_client.create_websocket = self._create
                self._is_installed = True

    def _uninstall(self) -> None:
        with self._lock:
            self._calls -= 1
            # Other code may have wrapped our function in the meantime; then it must stay installed.
            if self._calls == 0 and ws_client.create_websocket == self._create:
                ws_client.create_websocket = self._original
                self._is_installed = False

    def _create(self, configuration: object, url: str, headers: Mapping[str, str] | None = None) -> websocket.WebSocket:
        dial = self._dial.get()
        return self._original(configuration, url, headers) if dial is None else dial(url)


# One per process, like the function that it replaces.
DIALLING = Dialling()


def dial_for(connection: ClusterAccess, headers: Headers) -> Dial:
    """Return a function that opens the websocket of one call. Errors of TLS or proxy settings are raised here."""
    context = connection.ssl_context()
    options = {
        "header": [f"{name}: {value}" for name, value in headers],
        # The library would send the same headers to the target of a redirect.
        "redirect_limit": 0,
        **_proxy_options(connection.proxy),
    }

    def dial(url: str) -> websocket.WebSocket:
        # The trace output contains the headers of the handshake.
        websocket.enableTrace(False)
        socket = websocket.WebSocket(sslopt={} if context is None else {"context": context})
        socket.connect(url, **options)  # type: ignore[no-untyped-call]
        return socket

    return dial


class _ProxyOptions(TypedDict, total=False):
    """The options of `websocket.WebSocket.connect` that set a proxy."""

    http_proxy_host: str | None
    http_proxy_port: int
    http_proxy_auth: tuple[str, str] | None
    http_no_proxy: list[str]


def _proxy_options(proxy: str | None) -> _ProxyOptions:
    if proxy is None:
        # Without an explicit proxy, the library would read one from the environment.
        return {"http_proxy_host": NOWHERE, "http_proxy_port": 1, "http_no_proxy": ["*"]}
    parts = urlsplit(proxy)
    if parts.scheme != "http":
        raise TransportError(
            "the proxy for this server cannot be used for streams",
            cause=f"the websockets of the official client know http:// proxies only, and this one is {parts.scheme}://",
            hint="use an http:// proxy; all calls but exec, attach and port-forward go through this one too",
            code="proxy-invalid",
        )
    return {
        "http_proxy_host": parts.hostname,
        "http_proxy_port": parts.port or 80,
        "http_proxy_auth": (unquote(parts.username), unquote(parts.password or "")) if parts.username else None,
        # With an empty list, NO_PROXY of the environment would apply.
        "http_no_proxy": [NOWHERE],
    }


SWITCHING_PROTOCOLS = 101
PROTOCOLS = {"sec-websocket-protocol": f"{ws_client.V5_CHANNEL_PROTOCOL},{ws_client.V4_CHANNEL_PROTOCOL}"}
Transport = Callable[..., Untyped]


def api_client(connection: ClusterAccess, **options: Untyped) -> ApiClient:
    """Return an `ApiClient` with the credential, for ``kubernetes.client.CoreV1Api(...)`` and all the others.

    *options* are those of `urllib3.PoolManager`: `retries`, `maxsize`, `socket_options`, ...
    """
    return ApiClient(connection, **options)


class ApiClient(kubernetes.client.ApiClient):
    """A `kubernetes.client.ApiClient` for one cluster. Threads may share it, including streams."""

    def __init__(self, connection: ClusterAccess, **options: Untyped) -> None:
        self._connection = connection
        self._of_this_thread = threading.local()
        configuration = kubernetes.client.Configuration(host=connection.server)
        # The library reads this from the environment and would set up a proxy that is replaced right after.
        configuration.proxy = None
        super().__init__(configuration)
        options.setdefault("maxsize", configuration.connection_pool_maxsize)
        self.rest_client.pool_manager = pool_manager(connection, **options)

    def __repr__(self) -> str:
        return f"<ApiClient of {self._connection!r}>"

    # `kubernetes.stream` sets this attribute for the duration of one call. It is stored per thread, or concurrent calls
    # of other threads would become websockets too.

    @property
    def call_api(self) -> Transport:
        streaming: Transport | None = getattr(self._of_this_thread, "streaming", None)
        return streaming or super().call_api

    @call_api.setter
    def call_api(self, transport: Transport) -> None:
        ordinary = transport == super().call_api
        self._of_this_thread.streaming = None if ordinary else partial(self._stream, transport)

    def _stream(self, transport: Transport, method: str, url: str, *args: Untyped, **options: Untyped) -> Untyped:
        if not self._connection.is_server_url(url):
            return transport(method, url, *args, **options)
        headers = args[0] if args else options.get("header_params")
        call = partial(transport, method, url, *args, **options)
        answer = send_signed(self._connection, _StreamCall(self._connection, url, headers or {}, call))
        if isinstance(answer, ApiException):
            raise answer
        return answer


class _StreamCall:
    """A `Carrier` for one call of `kubernetes.stream`. Its response is what the call returned or raised."""

    # A command that is rejected at the handshake has not started.
    replayable = True

    def __init__(self, connection: ClusterAccess, url: str, headers: Mapping[str, str], call: Transport) -> None:
        self._connection, self._url, self._call = connection, url, call
        self._headers = {name.lower(): value for name, value in headers.items()}

    def has(self, header: str) -> bool:
        return header.lower() in self._headers

    def to_sign(self) -> RequestToSign:
        scheme, _, rest = self._dialled_url().partition("://")
        url = f"{scheme.replace('ws', 'http')}://{rest}"
        return RequestToSign("GET", url, tuple(self._own_headers().items()))

    def _dialled_url(self) -> str:
        """Return the URL that the library would dial.

        The library rewrites the query for some calls, so run the call with a function that only records the URL.
        """
        urls: list[str] = []

        def note(url: str) -> NoReturn:
            urls.append(url)
            raise _NotDialled

        with DIALLING.through(note), suppress(ApiException):
            self._call()
        return urls[0] if urls else self._url

    def _own_headers(self) -> dict[str, str]:
        return {**PROTOCOLS, **{name: text for name, text in self._headers.items() if _is_of_the_handshake(name)}}

    def send(self, headers: Headers) -> object:
        lines = [*self._own_headers().items(), *headers]
        with DIALLING.through(dial_for(self._connection, lines)):
            try:
                return self._call()
            except ApiException as error:
                return error

    def status(self, answer: object) -> int:
        if not isinstance(answer, ApiException):
            return SWITCHING_PROTOCOLS
        # The library raises ApiException while it handles the exception that holds the server's status.
        return getattr(answer.__context__, "status_code", None) or SERVER_ERROR

    def headers(self, answer: object) -> Mapping[str, Sequence[str]]:
        context = answer.__context__ if isinstance(answer, ApiException) else None
        headers_received: Mapping[str, str] = getattr(context, "resp_headers", None) or {}
        return {name: [value] for name, value in headers_received.items()}

    def discard(self, answer: object) -> None:
        """Do nothing: the library has closed the connection."""


class _NotDialled(Exception):
    """Raised instead of dialing, once the URL is known."""


def _is_of_the_handshake(header: str) -> bool:
    # The generated code also sets headers for a body, which a websocket does not have.
    return header in ("authorization", "sec-websocket-protocol") or header.startswith("impersonate-")
