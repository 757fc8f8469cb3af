"""Work that goes on in the background of a worker: following revocations, sweeping the store, watching files.

Called by the app.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ostiary.errors import OstiaryError

log = logging.getLogger("ostiary.gateway")

# How long to wait before work that ended or failed is started again.
RETRY_SECONDS = 1.0

Work = Callable[[], Awaitable[None]]


class BackgroundTasks:
    """The tasks of one configuration, until `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self._loop = loop
        self._retry_seconds = retry_seconds
        self._tasks: list[asyncio.Task[None]] = []

    def keep_running(self, what: str, work: Work) -> None:
        """Start *work*, and again whenever it ends. *what* names it in the log."""
        self._tasks.append(self._loop.create_task(_run_forever(what, work, self._retry_seconds)))

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_forever(what: str, work: Work, retry_seconds: float) -> None:
    """One failure must not end background work: a store may be back in a moment."""
    while True:
        try:
            await work()
        except Exception as error:
            cause = error.cause or error.summary if isinstance(error, OstiaryError) else type(error).__name__
            log.error("%s failed; retrying", what, extra={"cause": cause})
        await asyncio.sleep(retry_seconds)
