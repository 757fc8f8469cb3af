"""The gatekeeper for threads, used by the WSGI middleware. It runs an event loop in a thread of its own."""

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
# Longer than any step takes: the timeouts of the gateway client and the providers are shorter.
LONGEST_SECONDS = 120.0


class SyncGatekeeper:
    """A `Gatekeeper` that is safe to use from any thread.

    *make* is called immediately, so that configuration errors are reported at startup. It is called again in a forked
    process, because threads and connections do not survive a fork.
    """

    def __init__(self, make: Callable[[], Gatekeeper]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._gatekeeper: Gatekeeper | None = make()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, mapper: AttributesMapper | None = None) -> Self:
        """Load the configuration from *path* (``backend.yaml``). Raises `ConfigurationError` with all its errors."""
        return cls(lambda: Gatekeeper.from_file(path, mapper=mapper))

    @property
    def accepts_actions(self) -> bool:
        return self._current()[0].accepts_actions

    def is_open(self, target: bytes) -> bool:
        return self._current()[0].is_open(target)

    def check(self, request: BackendRequest) -> SyncAccess:
        """Authenticate and authorize *request*. Raises `AccessRefused` if it is not admitted."""
        gatekeeper, loop = self._current()
        access = _wait(gatekeeper.check(request), loop)
        return SyncAccess(
            access.request, access.request_id, access.received_at, access.token, access.plan, access.upstream
        ).bind(self._require)

    def finish(self, admitted: Admitted, status: int) -> None:
        """Record that the response has *status*."""
        if admitted.plan.audit is not None:
            gatekeeper, loop = self._current()
            loop.call_soon_threadsafe(gatekeeper.finish, admitted, status)

    def fail(self, admitted: Admitted) -> None:
        """Record that the application failed and the status of the response is unknown."""
        if admitted.plan.audit is not None:
            gatekeeper, loop = self._current()
            loop.call_soon_threadsafe(gatekeeper.fail, admitted)

    def authenticate(self, authorization: str | bytes | None) -> Bearer:
        """Return the user of the token in an ``Authorization`` header. Raises `AccessRefused`."""
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
        """Raise `AccessRefused` unless the policy allows *bearer* this action.

        Without a *resource*, *path* is checked.
        """
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
        """Close the gatekeeper and stop its thread. The next request starts both again."""
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
        """Return the gatekeeper of this process and its running loop."""
        if self._process == os.getpid() and self._loop is not None and self._gatekeeper is not None:
            return self._gatekeeper, self._loop
        with self._lock:
            if self._process != os.getpid():
                # After a fork: the parent's thread does not exist in this process.
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

        # A daemon thread, so that a server that never calls `close` can exit.
        self._thread = threading.Thread(target=run, name="ostiary gatekeeper", daemon=True)
        self._thread.start()
        return loop


def _wait(asking: Coroutine[object, None, T], loop: asyncio.AbstractEventLoop) -> T:
    return asyncio.run_coroutine_threadsafe(asking, loop).result(LONGEST_SECONDS)
