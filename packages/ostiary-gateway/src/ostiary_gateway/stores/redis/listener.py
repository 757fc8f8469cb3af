"""Subscribe to revocations on a connection of its own. While it is down, the store polls."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ostiary_gateway.stores.redis.connection import FAILURES, OpenConnection, ask
from ostiary_gateway.stores.redis.primary import Primary

# The delay before the next attempt after a failure.
PAUSE_SECONDS = 0.25

log = logging.getLogger("ostiary.redis")


class Listener:
    """Subscribes with the first `start`. `woken` is replaced by a new event whenever it is set."""

    def __init__(self, primary: Primary, channel: str) -> None:
        self._primary, self._channel = primary, channel
        self._task: asyncio.Task[None] | None = None
        self._dropped = asyncio.Event()
        self._subscribed = False
        self._reported = False
        self.woken = asyncio.Event()

    @property
    def is_listening(self) -> bool:
        return self._subscribed

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        woken, self.woken = self.woken, asyncio.Event()
        woken.set()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self.wake()

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except FAILURES as error:
                self._report(error)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _listen(self) -> None:
        connection = await self._primary.open()
        try:
            await ask(connection, ("SUBSCRIBE", self._channel))
            self._subscribed, self._reported = True, False
            self._dropped.clear()
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read(connection))
                await self._dropped.wait()
                reading.cancel()
        finally:
            self._subscribed = False
            self.wake()
            await connection.disconnect(nowait=True)

    async def _read(self, connection: OpenConnection) -> None:
        try:
            while True:
                await connection.read_response()
                self.wake()
        except FAILURES as error:
            self._report(error)
            self._dropped.set()

    def _report(self, error: BaseException) -> None:
        if not self._reported:
            self._reported = True
            log.warning(
                "Redis does not tell us of revocations: they are polled for", extra={"cause": type(error).__name__}
            )

    def drop(self) -> None:
        """Subscribe again: the primary may have changed."""
        self._dropped.set()
