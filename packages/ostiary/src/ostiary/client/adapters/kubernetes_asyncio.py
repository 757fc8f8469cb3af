"""The adapter for the two asynchronous Kubernetes clients, ``kubernetes.aio`` and ``kubernetes_asyncio``.

They are near relatives: both send everything, watches and the WebSockets of exec included, through
the aiohttp session in ``rest_client.pool_manager``. That becomes one of `ostiary.client.adapters.aiohttp`, and
the client's own settings for TLS, proxy and credentials stay empty.
"""

from __future__ import annotations

from importlib import import_module

from ostiary.client.access import ClusterAccess, Untyped
from ostiary.client.adapters.aiohttp import session
from ostiary.errors import ConfigurationError

LIBRARIES = ("kubernetes.aio", "kubernetes_asyncio")


def api_client(connection: ClusterAccess, *, library: str, **options: Untyped) -> Untyped:
    """An `ApiClient` of *library* that is signed in to the cluster. Call it within a running event loop.

    *library* is ``kubernetes.aio`` or ``kubernetes_asyncio``; *options* are those of
    `ostiary.client.adapters.aiohttp.session`. Closing the client closes its session.
    """
    client = _module(library, "client")
    return _sign(client.ApiClient(_configuration(connection, client)), connection, options)


def ws_api_client(
    connection: ClusterAccess, *, library: str, heartbeat: float | None = None, **options: Untyped
) -> Untyped:
    """`api_client` for what needs a WebSocket: ``connect_get_namespaced_pod_exec`` and its like."""
    client = _module(library, "stream").WsApiClient(
        _configuration(connection, _module(library, "client")), heartbeat=heartbeat
    )
    return _sign(client, connection, options)


def _module(library: str, name: str) -> Untyped:
    if library not in LIBRARIES:
        raise ConfigurationError(f"unknown client library {library!r}", cause=f"use one of {', '.join(LIBRARIES)}")
    return import_module(f"{library}.{name}")


def _configuration(connection: ClusterAccess, client: Untyped) -> Untyped:
    # A new one, and not a copy of the program's default: that may hold a token or a proxy.
    configuration = client.Configuration()
    configuration.host = connection.server
    return configuration


def _sign(made: Untyped, connection: ClusterAccess, options: dict[str, Untyped]) -> Untyped:
    unused = made.rest_client.pool_manager
    if unused is not None:
        # kubernetes_asyncio has made a session already. It never had a connection, so nothing needs closing
        # except in name; without this it would complain when it is collected.
        unused.detach()
    made.rest_client.pool_manager = session(connection, **options)
    return made
