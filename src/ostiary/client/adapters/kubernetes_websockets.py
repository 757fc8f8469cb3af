"""Dials the websockets of `kubernetes.stream` for our clients, with their TLS context, headers and proxy.

Called by the `kubernetes` adapter for each call of exec, attach and port-forward. The library has no parameter for any
of this, so its `create_websocket` is replaced, but only while one of our calls is under way. Importing this changes
nothing.

The library's websockets know one kind of proxy, ``http://``; with any other, streams are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypedDict
from urllib.parse import unquote, urlsplit

import websocket
from kubernetes.stream import ws_client

from ostiary.client.access import ClusterAccess
from ostiary.client.retry_on_401 import Headers
from ostiary.errors import TransportError

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
