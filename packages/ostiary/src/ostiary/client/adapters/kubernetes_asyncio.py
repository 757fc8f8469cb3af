"""The adapter for the two asynchronous Kubernetes clients, ``kubernetes.aio`` and ``kubernetes_asyncio``.

Both send everything, including watches and the websockets of exec, through the aiohttp session in
``rest_client.pool_manager``. This replaces it with a session of `ostiary.client.adapters.aiohttp`; the client's own
settings for TLS, proxy and credentials stay empty.
"""

from __future__ import annotations

from importlib import import_module

from ostiary.client.access import ClusterAccess, Untyped
from ostiary.client.adapters.aiohttp import session
from ostiary.errors import ConfigurationError

LIBRARIES = ("kubernetes.aio", "kubernetes_asyncio")


def api_client(connection: ClusterAccess, *, library: str, **options: Untyped) -> Untyped:
    """Return an `ApiClient` of *library* that sends the credential. Call it within a running event loop.

    *library* is ``kubernetes.aio`` or ``kubernetes_asyncio``. *options* are those of
    `ostiary.client.adapters.aiohttp.session`. Closing the client closes its session.
    """
    client = _module(library, "client")
    return _sign(client.ApiClient(_configuration(connection, client)), connection, options)


def ws_api_client(
    connection: ClusterAccess, *, library: str, heartbeat: float | None = None, **options: Untyped
) -> Untyped:
    """Like `api_client`, for calls that need a websocket, such as ``connect_get_namespaced_pod_exec``."""
    client = _module(library, "stream").WsApiClient(
        _configuration(connection, _module(library, "client")), heartbeat=heartbeat
    )
    return _sign(client, connection, options)


def _module(library: str, name: str) -> Untyped:
    if library not in LIBRARIES:
        raise ConfigurationError(f"unknown client library {library!r}", cause=f"use one of {', '.join(LIBRARIES)}")
    return import_module(f"{library}.{name}")


def _configuration(connection: ClusterAccess, client: Untyped) -> Untyped:
    # Not a copy of the process-wide default configuration, which may contain a token or a proxy.
    configuration = client.Configuration()
    configuration.host = connection.server
    return configuration


def _sign(made: Untyped, connection: ClusterAccess, options: dict[str, Untyped]) -> Untyped:
    unused = made.rest_client.pool_manager
    if unused is not None:
        # kubernetes_asyncio has already created a session. It has no connections, but must be detached or aiohttp warns
        # about an unclosed session.
        unused.detach()
    made.rest_client.pool_manager = session(connection, **options)
    return made
