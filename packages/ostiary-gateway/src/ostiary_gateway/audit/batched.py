"""Pass audit events to an audit provider in batches.

    accept (synchronous)  ->  a buffer  ->  a batch, by size or time  ->  `store`, or counted as dropped

For providers that do not implement `RecordsAtOnce`. The provider runs in a thread of its own, so a slow one does not
delay requests: accepting an event appends to a list.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

from ostiary.errors import AuditUnavailable
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.audit import STORE_SECONDS, AuditProvider, Batches, ChoosesBatches
from ostiary_gateway.interfaces.lifecycle import Closes


class ProviderThread:
    """A thread with an event loop, so that a provider that blocks cannot delay the gateway's loop.

    It is started by the first call. All calls must come from one event loop.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Run *work* in the thread. Raises what it raises, and `TimeoutError` if it takes longer than *seconds*.

        After the timeout it is cancelled. If it ignores the cancellation, the next call has to wait for it too.
        """
        if self._loop is None:
            self._loop = self._start()
        future = asyncio.run_coroutine_threadsafe(_call(work), self._loop)
        async with asyncio.timeout(seconds):
            await asyncio.wrap_future(future)

    def stop(self) -> None:
        """Stop the thread without waiting for it: a provider that hangs must not keep the gateway from stopping."""
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


# Timeout for closing a provider. Events not stored by then count as dropped.
CLOSE_SECONDS = 10.0

log = logging.getLogger("ostiary_gateway.audit")


class BatchedSink:
    """A sink that passes batches to one audit provider, called *name* in the configuration.

    With *blocking*, a request fails when the buffer is full.
    """

    def __init__(
        self, provider: AuditProvider, *, name: str, blocking: bool = False, store_seconds: float = STORE_SECONDS
    ) -> None:
        self.blocking = blocking
        self.dropped = 0
        choosing = ability(provider, ChoosesBatches)
        batches = Batches() if choosing is None else choosing.batches
        self._buffer_events, self._batch_events = batches.buffer, batches.size
        self._batch_seconds, self._store_seconds = batches.seconds, store_seconds
        self._provider, self._name = provider, name
        self._thread = ProviderThread(f"audit-{name}")
        self._waiting: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._closed = self._full = False

    def accept(self, line: str) -> None:
        waiting = self._waiting
        if self._closed or len(waiting) >= self._buffer_events:
            self._refuse()
            return
        waiting.append(line)
        if len(waiting) >= self._batch_events:
            self._send_soon()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._batch_seconds, self._send_soon)

    async def flush(self) -> None:
        while self._waiting or self._sending is not None:
            self._send_soon()
            if self._sending is not None:
                # Shielded: cancelling the caller must not cancel the batch.
                await asyncio.shield(self._sending)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush()
        finally:
            self._lose(len(self._waiting), "the gateway stopped")
            self._waiting = []
            await self._close_provider()

    async def _close_provider(self) -> None:
        closing = ability(self._provider, Closes)
        try:
            if closing is not None:
                await self._thread.run(closing.close, CLOSE_SECONDS)
        except Exception as error:
            log.error("an audit provider fails to close", extra=self._about(type(error).__name__))
        finally:
            self._thread.stop()

    def _refuse(self) -> None:
        if self.blocking:
            cause = f'{len(self._waiting)} events wait for "{self._name}"'
            raise AuditUnavailable("an audit event cannot be stored", cause=cause, hint="check where events are sent")
        self.dropped += 1
        if not self._full:
            self._full = True
            extra = self._about("the buffer is full")
            log.error("audit events are dropped: their provider does not keep up", extra=extra)

    def _send_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is None and self._waiting:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        """Send until less than a batch is left. The rest waits for the timer, or for `flush`."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._batch_events], self._waiting[self._batch_events :]
                self._full = False
                await self._send(batch)
                if len(self._waiting) < self._batch_events and not self._closed:
                    break
        finally:
            self._sending = None
            if self._waiting and self._timer is None and not self._closed:
                self._timer = asyncio.get_running_loop().call_later(self._batch_seconds, self._send_soon)

    async def _send(self, batch: list[str]) -> None:
        why = "the gateway stopped"
        try:
            await self._thread.run(lambda: self._provider.store(batch), self._store_seconds)
            why = ""
        except TimeoutError:
            why = f"it took longer than {self._store_seconds:g} seconds"
        except AuditUnavailable as error:
            why = error.cause or error.summary
        except Exception as error:
            # The type only: the text of a third-party exception may contain a password.
            why = type(error).__name__
        finally:
            if why:
                self._lose(len(batch), why)

    def _lose(self, count: int, why: str) -> None:
        if count:
            self.dropped += count
            log.error("audit events are lost: they were not accepted", extra={"dropped": count, **self._about(why)})

    def _about(self, cause: str) -> dict[str, object]:
        return {"sink": self._name, "cause": cause}
