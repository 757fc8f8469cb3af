"""Sends audit events to a webhook, in batches.

    accept (at once)  ->  a buffer  ->  an EventList, when there are enough or it is time  ->  posted, or counted

Called by the auditor, as the other sinks are.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import AuditUnavailable
from ostiary.wire.audit import event_list

if TYPE_CHECKING:
    import httpx2

BUFFER_EVENTS = 10_000
BATCH_EVENTS = 400
BATCH_SECONDS = 30.0
REQUESTS_PER_SECOND = 10.0
BURST = 15
ATTEMPTS = 5
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
_CONTENT = {"Content-Type": "application/json"}

log = logging.getLogger("ostiary.gateway.audit")


class WebhookSink:
    """Posts events in batches, as an ``EventList``, with the API server's own defaults.

    No request waits until the webhook has accepted its event: *blocking* here means that a request is refused when the
    buffer is full. A batch that failed *attempts* times is dropped and counted.
    """

    def __init__(
        self,
        url: str,
        *,
        client: httpx2.AsyncClient,
        token_file: str | os.PathLike[str] | None = None,
        blocking: bool = False,
        buffer_events: int = BUFFER_EVENTS,
        batch_events: int = BATCH_EVENTS,
        batch_seconds: float = BATCH_SECONDS,
        requests_per_second: float = REQUESTS_PER_SECOND,
        burst: int = BURST,
        attempts: int = ATTEMPTS,
        clock: Clock = SYSTEM_CLOCK,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.blocking = blocking
        self.dropped = 0
        self._url, self._client, self._token_file = url, client, token_file
        self._buffer_events, self._batch_events, self._batch_seconds = buffer_events, batch_events, batch_seconds
        self._attempts, self._pause = attempts, pause
        self._pace = _Pace(requests_per_second, burst, clock)
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
            await self._client.aclose()

    def _refuse(self) -> None:
        if self.blocking:
            cause = f"{len(self._waiting)} events wait for the webhook"
            raise AuditUnavailable("an audit event cannot be stored", cause=cause, hint="check the webhook")
        self.dropped += 1
        if not self._full:
            self._full = True
            log.error("audit events are dropped: the webhook does not keep up", extra={"cause": "the buffer is full"})

    def _send_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is None and self._waiting:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        """Send until less than a batch is left; the rest waits for the timer, or for `flush`."""
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
        body = event_list([line.rstrip("\n") for line in batch]).encode("ascii")
        why = "the gateway stopped"
        try:
            why = await self._deliver(body)
        finally:
            if why:
                self._lose(len(batch), why)

    async def _deliver(self, body: bytes) -> str:
        """Post *body*, several times if need be; returns why it was not accepted, or an empty text."""
        why, delay = "", FIRST_RETRY_SECONDS
        for attempt in range(self._attempts):
            if attempt:
                await self._pause(delay)
                delay = min(delay * 2, LONGEST_RETRY_SECONDS)
            await self._pause_for_pace()
            why, again = await self._post(body)
            if not again:
                break
        return why

    async def _pause_for_pace(self) -> None:
        while seconds := self._pace.wait():
            await self._pause(seconds)

    async def _post(self, body: bytes) -> tuple[str, bool]:
        """Returns why it was not accepted, or an empty text, and whether trying again may help."""
        try:
            response = await self._client.post(self._url, content=body, headers=_CONTENT | self._authorization())
        except Exception as error:
            # Only its type: the text of a transport error may contain the URL, and the URL a password.
            return type(error).__name__, True
        if response.status_code < 300:
            return "", False
        again = response.status_code >= 500 or response.status_code in (408, 429)
        return f"it answered {response.status_code}", again

    def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        # Read for every batch, because such tokens are replaced on disk before they expire.
        return {"Authorization": f"Bearer {Path(self._token_file).read_text(encoding='utf-8').strip()}"}

    def _lose(self, count: int, why: str) -> None:
        if count:
            self.dropped += count
            log.error("audit events are lost: the webhook did not accept them", extra={"dropped": count, "cause": why})


class _Pace:
    """A few requests at once, then so many a second."""

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._rate, self._burst, self._clock = rate, float(burst), clock
        self._tokens, self._at = float(burst), clock.monotonic()

    def wait(self) -> float:
        """Take a turn and return zero, or return after how many seconds there will be one."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate
