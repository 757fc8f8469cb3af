"""Settles what this worker has counted with the other replicas, in the background.

    something was counted  ->  exchange at once  ->  a pause  ->  exchange what was counted meanwhile  ->  ...

Run by the app if the token store keeps counts for replicas. While the store is away every replica counts alone.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ostiary.core.clock import Clock
from ostiary.core.counting.replicated_counts import ReplicatedCounts
from ostiary.errors import OstiaryError
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.observe.repeated_log import RepeatedLog

# The reference says by how much replicas can be off because of it.
PAUSE_SECONDS = 0.5
# What waits when a worker stops is settled, but nobody waits long for it.
LAST_EXCHANGE_SECONDS = 1.0
# A store that is away for hours is mentioned now and then.
LOG_SECONDS = 60.0

log = logging.getLogger("ostiary.gateway")


class CountExchange:
    def __init__(self, counts: ReplicatedCounts, metrics: Metrics, clock: Clock) -> None:
        self._counts = counts
        self._log = RepeatedLog(log, clock, interval=LOG_SECONDS)
        self.is_alone = False
        self._under_way: asyncio.Task[None] | None = None
        metrics.counts_alone.read_from(lambda: 1 if self.is_alone else 0)
        metrics.counts_waiting.read_from(lambda: counts.waiting)
        metrics.counts_dropped.read_from(lambda: counts.dropped)

    async def run(self) -> None:
        """Exchange as long as the gateway runs."""
        while True:
            await self._counts.wait_for_reports()
            await self.exchange()
            await asyncio.sleep(PAUSE_SECONDS)

    async def exchange(self) -> None:
        """Settle what waits now. An exchange goes on when its caller is cancelled, as at a reload.

        Nobody would know what the store has made of half of it.
        """
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._exchange())
        await asyncio.shield(self._under_way)

    async def _exchange(self) -> None:
        try:
            await self._counts.exchange()
        except Exception as error:
            self.is_alone = True
            cause = error.cause or error.summary if isinstance(error, OstiaryError) else type(error).__name__
            message = "the token store keeps no counts at the moment: this replica counts requests alone"
            self._log.write(logging.ERROR, message, {"cause": cause})
        else:
            if self.is_alone:
                log.warning("the replicas count together again", extra={"left_out": self._log.end()})
            self.is_alone = False

    async def finish(self) -> None:
        """Settle what waits, because the worker stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_EXCHANGE_SECONDS):
                await self._settle_all()
        if self._under_way is not None:
            self._under_way.cancel()

    async def _settle_all(self) -> None:
        while self._counts.waiting:
            await self.exchange()
            if self.is_alone:
                return
