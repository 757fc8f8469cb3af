"""The adapter for the official client: an `ApiClient` whose every call goes through our urllib3.

Ordinary calls, watches and the dynamic client need no more than that. `kubernetes.stream` (exec, attach,
port-forward) dials by itself, with files for TLS, without impersonation, and would take the token along
on a redirect. So for our clients, and no others, `kubernetes_websockets` dials.
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

# Dials the websockets of `kubernetes.stream` for our clients, with their TLS context, headers and proxy.
#
# Called by the `kubernetes` adapter for each call of exec, attach and port-forward. The library has no parameter for
# any of this, so its `create_websocket` is replaced, but only while one of our calls is under way. Importing this
# changes nothing.
#
# The library's websockets know one kind of proxy, ``http://``; with any other, streams are refused.

NOWHERE = "unused.invalid"
Dial = Callable[[str], websocket.WebSocket]


class Dialling:
    """Which function opens the websocket of the call under way in this thread or task.

    While any of our calls is under way, `create_websocket` of the library is ours. It passes every other call on to
    what was there before, so clients of other people notice nothing, whichever thread they are in.
    """

    def __init__(self) -> None:
        self._dial: ContextVar[Dial | None] = ContextVar("dial", default=None)
        self._lock = threading.Lock()
        self._calls = 0
        self._original: Callable[..., websocket.WebSocket] = ws_client.create_websocket
        self._is_installed = False

    @contextmanager
    def through(self, dial: Dial) -> Iterator[None]:
        """Within this, the library opens a websocket by *dial*."""
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
            # Somebody else may have replaced it meanwhile with a function that calls ours: then ours stays.
            if self._calls == 0 and ws_client.create_websocket == self._create:
                ws_client.create_websocket = self._original
                self._is_installed = False

    def _create(self, configuration: object, url: str, headers: Mapping[str, str] | None = None) -> websocket.WebSocket:
        dial = self._dial.get()
        return self._original(configuration, url, headers) if dial is None else dial(url)


# One for the process, as the function that it replaces is.
DIALLING = Dialling()


def dial_for(connection: ClusterAccess, headers: Headers) -> Dial:
    """How to open the websocket of one call. Whatever is wrong with TLS or the proxy is raised here."""
    context = connection.ssl_context()
    options = {
        "header": [f"{name}: {value}" for name, value in headers],
        # The library would send the same headers to wherever it is redirected.
        "redirect_limit": 0,
        **_proxy_options(connection.proxy),
    }

    def dial(url: str) -> websocket.WebSocket:
        # Its trace shows the headers of the handshake.
        websocket.enableTrace(False)
        socket = websocket.WebSocket(sslopt={} if context is None else {"context": context})
        socket.connect(url, **options)  # type: ignore[no-untyped-call]
        return socket

    return dial


class _ProxyOptions(TypedDict, total=False):
    """Those of `websocket.WebSocket.connect` that name a proxy."""

    http_proxy_host: str | None
    http_proxy_port: int
    http_proxy_auth: tuple[str, str] | None
    http_no_proxy: list[str]


def _proxy_options(proxy: str | None) -> _ProxyOptions:
    if proxy is None:
        # Given no proxy at all, the library would look for one in the environment.
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
        # An empty list would let the environment's NO_PROXY in.
        "http_no_proxy": [NOWHERE],
    }


SWITCHING_PROTOCOLS = 101
PROTOCOLS = {"sec-websocket-protocol": f"{ws_client.V5_CHANNEL_PROTOCOL},{ws_client.V4_CHANNEL_PROTOCOL}"}
Transport = Callable[..., Untyped]


def api_client(connection: ClusterAccess, **options: Untyped) -> ApiClient:
    """An `ApiClient` that is signed in, for ``kubernetes.client.CoreV1Api(...)`` and all the others.

    *options* are those of `urllib3.PoolManager`: `retries`, `maxsize`, `socket_options`, ...
    """
    return ApiClient(connection, **options)


class ApiClient(kubernetes.client.ApiClient):
    """A `kubernetes.client.ApiClient` for one cluster. Threads may share it, streams included."""

    def __init__(self, connection: ClusterAccess, **options: Untyped) -> None:
        self._connection = connection
        self._of_this_thread = threading.local()
        configuration = kubernetes.client.Configuration(host=connection.server)
        # Taken from the environment; and the library would set up what we replace in the next moment.
        configuration.proxy = None
        super().__init__(configuration)
        options.setdefault("maxsize", configuration.connection_pool_maxsize)
        self.rest_client.pool_manager = pool_manager(connection, **options)

    def __repr__(self) -> str:
        return f"<ApiClient of {self._connection!r}>"

    # `kubernetes.stream` puts a transport of its own here for the time of one call. Were it seen by other
    # threads, their calls would become websockets too.

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
    """A `Carrier`: one call of `kubernetes.stream`. Its answer is what the call returned or raised."""

    # A command that is rejected at the handshake has not begun.
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
        """The URL that the library would dial: it writes the query anew for some calls, so it is asked."""
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
        # The library raises while it handles the exception that tells what the server said.
        return getattr(answer.__context__, "status_code", None) or SERVER_ERROR

    def headers(self, answer: object) -> Mapping[str, Sequence[str]]:
        context = answer.__context__ if isinstance(answer, ApiException) else None
        headers_received: Mapping[str, str] = getattr(context, "resp_headers", None) or {}
        return {name: [value] for name, value in headers_received.items()}

    def discard(self, answer: object) -> None:
        """The library has closed the connection."""


class _NotDialled(Exception):
    """The URL was all that was wanted."""


def _is_of_the_handshake(header: str) -> bool:
    # The generated code also sets headers for a body that a websocket does not have.
    return header in ("authorization", "sec-websocket-protocol") or header.startswith("impersonate-")
