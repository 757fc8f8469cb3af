"""The adapter for the official client: an `ApiClient` whose every call goes through our urllib3.

Ordinary calls, watches and the dynamic client need no more than that. `kubernetes.stream` (exec, attach,
port-forward) dials by itself, with files for TLS, without impersonation, and would take the token along
on a redirect. So for our clients, and no others, `kubernetes_websockets` dials.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

import kubernetes.client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import ws_client

from ostiary.client.access import ClusterAccess, Untyped
from ostiary.client.adapters.kubernetes_websockets import DIALLING, dial_for
from ostiary.client.adapters.urllib3 import pool_manager
from ostiary.client.retry_on_401 import SERVER_ERROR, Headers, send_signed
from ostiary.client.signing.request import RequestToSign

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
