"""Wakes whoever waits for a revocation, as soon as the database tells of one (``LISTEN``).

Called by the log of revocations. It only wakes: a notification that is lost costs a second, until the next poll. The
connection is one of its own, since a pooler in transaction mode carries no notifications. When it breaks, it is made
again after a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ostiary.plugins.postgresql.connections import Connection, DatabaseConnector
from ostiary.plugins.postgresql.migrations import channel_of, quote_identifier

# The pause before a broken connection is made again.
RETRY_SECONDS = 1.0
# How often a quiet connection is tried: one whose other end is gone would be silent for ever.
CHECK_SECONDS = 10.0
# The lock tells others that somebody uses the store: see `tables.examination`.
_HEAD = "SELECT head, pg_advisory_lock_shared(1869837420, {schema}.lock_number()) FROM {schema}.state"


class Notifications:
    """Calls *on_head* with the number of each revocation, and with the last one once it listens."""

    def __init__(self, connector: DatabaseConnector, schema: str, on_head: Callable[[int], None]) -> None:
        self._connector = connector
        self._schema = schema
        self._on_head = on_head
        self._task: asyncio.Task[None] | None = None
        self.is_listening = False
        # How often a connection was made.
        self.connections = 0

    def start(self) -> None:
        """Begin in the background; harmless if it has begun."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="ostiary-notifications")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            # Whatever it is: the store itself will tell whoever asks it.
            with suppress(Exception):
                await self._listen()
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        connection = await self._connector.connect()
        try:
            ended = asyncio.Event()
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(channel_of(self._schema), self._notify)
            # Asked after it listens: what was written before has notified nobody here.
            head = await connection.fetchval(_HEAD.format(schema=quote_identifier(self._schema)))
            self.is_listening = True
            self.connections += 1
            self._on_head(head)
            while not ended.is_set():
                await self._check(connection, ended)
        finally:
            self.is_listening = False
            connection.terminate()

    async def _check(self, connection: Connection, ended: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await ended.wait()
        if not ended.is_set():
            await connection.execute("SELECT 1")

    def _notify(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        # Whoever may connect may notify: what is no number is none of ours.
        with suppress(ValueError):
            self._on_head(int(payload))
