"""Background tasks of a worker, restarted when they end or fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import OstiaryError
from ostiary_gateway.observability.repeated_log import RepeatedLog

log = logging.getLogger("ostiary.gateway")

# Pause before a task that ended or failed is started again.
RETRY_SECONDS = 1.0
# Interval of repeated log lines during an outage. A task that ran at least this long before it failed starts a new
# outage.
REPEAT_SECONDS = 60.0

Work = Callable[[], Awaitable[None]]


class BackgroundTasks:
    """The background tasks of one configuration, until `stop`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock = SYSTEM_CLOCK,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._tasks: list[asyncio.Task[None]] = []

    def keep_running(self, what: str, work: Work) -> None:
        """Start *work*, and restart it whenever it ends. *what* names it in the log."""
        self._tasks.append(self._loop.create_task(self._run_forever(what, work)))

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_forever(self, what: str, work: Work) -> None:
        """Restart after every failure: a store may be available again a moment later."""
        failures = RepeatedLog(log, self._clock, interval=REPEAT_SECONDS)
        while True:
            started_at = self._clock.monotonic()
            try:
                await work()
            except Exception as error:
                if self._clock.monotonic() - started_at >= REPEAT_SECONDS:
                    failures.end()
                cause = error.cause or error.summary if isinstance(error, OstiaryError) else type(error).__name__
                failures.write(logging.ERROR, f"{what} failed; retrying", {"cause": cause})
            await asyncio.sleep(self._retry_seconds)
