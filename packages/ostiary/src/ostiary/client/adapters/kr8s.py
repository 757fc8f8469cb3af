"""The adapter for kr8s: its `Api` with our httpx client.

kr8s does not accept a custom client, so this subclasses its `Api` at the two points that all of its requests pass: the
creation of the session, and the API call. The first is private to kr8s, as are two modules imported below; tests fail
if any of them moves.

Everything that goes through `Api` works, including websockets (``exec``, ``port_forward``), which use the same session.
kr8s's own authentication, which runs the plugin three more times on every 403, is not used.

Limitations: `Api.whoami` supports only tokens and certificates in files and returns None. ``kr8s.get()`` without
``api=`` uses whichever `Api` was created first in this thread and loop, so pass it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import kr8s
import kr8s.asyncio
from kr8s._async_utils import as_sync_func
from kr8s._auth import KubeAuth

from ostiary.client.access import ClusterAccess, Untyped
from ostiary.client.adapters.httpx import async_client

HEADERS = {"User-Agent": f"kr8s/{kr8s.__version__}", "Content-Type": "application/json"}


async def api(connection: ClusterAccess, **options: Untyped) -> AsyncApi:
    """Return a `kr8s.asyncio.Api` that sends the credential to the cluster. Nothing is sent before its first use.

    *options* are those of `httpx.AsyncClient`, such as ``timeout``; see `ostiary.client.adapters.httpx`. Close it with
    ``await api.aclose()``, or use it in an ``async with`` statement.
    """
    return AsyncApi(connection, options)


def sync_api(connection: ClusterAccess, **options: Untyped) -> SyncApi:
    """Like `api`, without an event loop. Close it with ``api.close()``, or use it in a ``with`` statement."""

    async def make() -> SyncApi:
        # kr8s runs all its calls in one loop in its own thread, and caches an Api by its loop.
        return SyncApi(connection, options)

    return as_sync_func(make)()


class _Auth(KubeAuth):
    """Provides kr8s with server, namespace and context, without credentials. Reads no file and runs no plugin."""

    def __init__(self, connection: ClusterAccess) -> None:
        super().__init__(url=connection.server, namespace=connection.namespace)
        self.server = connection.server
        self.active_context = connection.selection.context_name

    async def reauthenticate(self) -> None:
        pass


class _OnConnection:
    """The two overridden methods, for the async and the sync `Api`."""

    _session: httpx.AsyncClient | None
    _timeout: Untyped

    def __init__(self, connection: ClusterAccess, options: dict[str, Untyped]) -> None:
        super().__init__(bypass_factory=True, url=connection.server, namespace=connection.namespace)  # type: ignore[call-arg]
        self._connection = connection
        self._timeout = options.get("timeout")
        self._options = options
        self.auth = _Auth(connection)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._connection!r}>"

    async def _create_session(self) -> None:
        if self._session is None or self._session.is_closed:
            options = {"follow_redirects": True, **self._options, "timeout": self._timeout}
            options["headers"] = {**HEADERS, **self._options.get("headers", {})}
            self._session = async_client(self._connection, **options)

    @asynccontextmanager
    async def call_api(
        self, *args: Untyped, raise_for_status: bool = True, **options: Untyped
    ) -> AsyncIterator[httpx.Response]:
        # raise_for_status=False disables kr8s's own retries; `send_signed_async` has already retried where it makes
        # sense.
        async with super().call_api(*args, raise_for_status=False, **options) as response:  # type: ignore[misc]
            if raise_for_status and response.is_error:
                await response.aread()
                raise _server_error(response)
            yield response

    async def _close_session(self) -> None:
        if self._session is not None:
            await self._session.aclose()


class AsyncApi(_OnConnection, kr8s.asyncio.Api):  # type: ignore[misc]
    async def aclose(self) -> None:
        await self._close_session()

    async def __aenter__(self) -> AsyncApi:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


class SyncApi(_OnConnection, kr8s.Api):  # type: ignore[misc]
    def close(self) -> None:
        as_sync_func(self._close_session)()

    def __enter__(self) -> SyncApi:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _server_error(response: httpx.Response) -> kr8s.ServerError:
    """Return the error that kr8s raises for a response, with the server's own message if there is one."""
    try:
        status = response.json()
        message = status["message"]
    except (json.JSONDecodeError, KeyError, TypeError):
        status, message = response.text, f"the API server answered {response.status_code} {response.reason_phrase}"
    return kr8s.ServerError(message, status=status, response=response)
