"""A thread with an event loop in which an audit provider works, so that it can hold up nobody else.

Called by `batched`. A provider may wait for a server without being asynchronous; the gateway's own loop goes on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable


class ProviderThread:
    """Starts with the first call. One event loop calls it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Do *work* in the thread. Raises what it raises, and `TimeoutError` if it takes longer than *seconds*.

        Then it is cancelled. If it does not even notice that, the next call has to wait for it too.
        """
        if self._loop is None:
            self._loop = self._start()
        future = asyncio.run_coroutine_threadsafe(_call(work), self._loop)
        async with asyncio.timeout(seconds):
            await asyncio.wrap_future(future)

    def stop(self) -> None:
        """Let the thread end. Nobody waits for it: a provider that hangs must not keep the gateway from stopping."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()

        def run() -> None:
            try:
                loop.run_forever()
            finally:
                loop.close()

        threading.Thread(target=run, name=f"ostiary-{self._name}", daemon=True).start()
        return loop


async def _call(work: Callable[[], Awaitable[None]]) -> None:
    await work()
