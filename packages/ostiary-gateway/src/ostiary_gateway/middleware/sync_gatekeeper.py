"""The gatekeeper for threads: it lives in an event loop of its own, in one thread beside those of the server.

Called by the middleware of WSGI, and by programs without an event loop. Servers that fork get a gatekeeper in each
process: threads and connections do not survive a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Self, TypeVar

from ostiary.model import RequestInfo
from ostiary_gateway.interfaces.attributes import AttributesMapper
from ostiary_gateway.middleware.access import Admitted, SyncAccess
from ostiary_gateway.middleware.bearer import Bearer
from ostiary_gateway.middleware.gatekeeper import Gatekeeper
from ostiary_gateway.middleware.request import BackendRequest

T = TypeVar("T")
# No step takes as long: the gateway and the providers have limits of their own, which are shorter.
LONGEST_SECONDS = 120.0


class SyncGatekeeper:
    """Safe to use from any thread. *make* is called at once, so that a mistake is told, and again after a fork."""

    def __init__(self, make: Callable[[], Gatekeeper]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._gatekeeper: Gatekeeper | None = make()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, mapper: AttributesMapper | None = None) -> Self:
        """As the file at *path* says (``backend.yaml``); raises `ConfigurationError` with all its mistakes."""
        return cls(lambda: Gatekeeper.from_file(path, mapper=mapper))

    @property
    def accepts_actions(self) -> bool:
        return self._current()[0].accepts_actions

    def is_open(self, target: bytes) -> bool:
        return self._current()[0].is_open(target)

    def check(self, request: BackendRequest) -> SyncAccess:
        """Let *request* through; raises `AccessRefused` if it must not pass."""
        gatekeeper, loop = self._current()
        access = _wait(gatekeeper.check(request), loop)
        return SyncAccess(
            access.request, access.request_id, access.received_at, access.token, access.plan, access.upstream
        ).bind(self._require)

    def finish(self, admitted: Admitted, status: int) -> None:
        """The request has been answered with *status*: record its end."""
        if admitted.plan.audit is not None:
            gatekeeper, loop = self._current()
            loop.call_soon_threadsafe(gatekeeper.finish, admitted, status)

    def fail(self, admitted: Admitted) -> None:
        """The application has failed, and nobody knows what was answered: record that."""
        if admitted.plan.audit is not None:
            gatekeeper, loop = self._current()
            loop.call_soon_threadsafe(gatekeeper.fail, admitted)

    def authenticate(self, authorization: str | bytes | None) -> Bearer:
        """Whose the token in an ``Authorization`` header is; raises `AccessRefused`."""
        gatekeeper, loop = self._current()
        return _wait(gatekeeper.authenticate(authorization), loop)

    def require(
        self,
        bearer: Bearer,
        verb: str,
        *,
        resource: str = "",
        subresource: str = "",
        api_group: str = "",
        namespace: str = "",
        name: str = "",
        path: str = "",
    ) -> None:
        """Raise `AccessRefused` unless *bearer* may do this. Without a *resource* it is about *path*."""
        gatekeeper, loop = self._current()
        asking = gatekeeper.require(
            bearer,
            verb,
            resource=resource,
            subresource=subresource,
            api_group=api_group,
            namespace=namespace,
            name=name,
            path=path,
        )
        _wait(asking, loop)

    def close(self) -> None:
        """Close the gatekeeper, and end its thread. It begins again with the next request."""
        with self._lock:
            gatekeeper, self._gatekeeper = self._gatekeeper, None
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
            if self._process != os.getpid() or gatekeeper is None or loop is None or thread is None:
                return
        _wait(gatekeeper.close(), loop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require(self, admitted: Admitted, info: RequestInfo) -> None:
        gatekeeper, loop = self._current()
        _wait(gatekeeper.require_also(admitted, info), loop)

    def _current(self) -> tuple[Gatekeeper, asyncio.AbstractEventLoop]:
        """The gatekeeper of this process and its loop, which runs."""
        if self._process == os.getpid() and self._loop is not None and self._gatekeeper is not None:
            return self._gatekeeper, self._loop
        with self._lock:
            if self._process != os.getpid():
                # Those of the parent: their thread did not come along.
                self._process, self._gatekeeper, self._loop = os.getpid(), None, None
            if self._gatekeeper is None:
                self._gatekeeper = self._make()
            if self._loop is None:
                self._loop = self._start()
            return self._gatekeeper, self._loop

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()

        def run() -> None:
            loop.run_forever()
            loop.close()

        # A daemon: a server that never closes us must still be able to end.
        self._thread = threading.Thread(target=run, name="ostiary gatekeeper", daemon=True)
        self._thread.start()
        return loop


def _wait(asking: Coroutine[object, None, T], loop: asyncio.AbstractEventLoop) -> T:
    return asyncio.run_coroutine_threadsafe(asking, loop).result(LONGEST_SECONDS)
