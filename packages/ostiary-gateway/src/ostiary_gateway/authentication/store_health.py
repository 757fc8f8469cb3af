"""Checks every few seconds that the token store can be written, by writing the time into it.

Run by the app in the background, and asked by readiness probes. A store that can be read but not written still lets
people in and cannot revoke anything, so a probe must not call it healthy. A clock that is set back is noticed here, and
the store corrects its times at once. Revocations that could not be stored are tried again.
"""

from __future__ import annotations

import asyncio
import logging

from ostiary.core.clock import Clock
from ostiary.errors import OstiaryError
from ostiary_gateway.sessions import CLOCK_TOLERANCE, Tokens

HEARTBEAT_SECONDS = 10.0
# The pause while something is wrong, or a revocation waits to be stored.
RETRY_SECONDS = 1.0
# A probe takes a result that is not older than the first, and waits for a new one no longer than the second.
PROBE_AGE_SECONDS = 2.0
PROBE_WAIT_SECONDS = 1.5

log = logging.getLogger("ostiary.gateway")


class StoreHealth:
    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._lock = asyncio.Lock()
        self._hurry = asyncio.Event()
        self._checked_at = float("-inf")
        self._offset = self._clock_offset()
        self.trouble = ""

    async def run(self) -> None:
        """Check as long as the gateway runs."""
        while True:
            self._hurry.clear()
            await self.check()
            pause = RETRY_SECONDS if self.trouble or self._tokens.unsaved else HEARTBEAT_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            except TimeoutError:
                pass

    def hurry(self) -> None:
        """Check now: a revocation waits to be stored."""
        self._hurry.set()

    def tick(self) -> None:
        """About twice a second: after a jump of the clock the store is told the time at once."""
        offset = self._clock_offset()
        if abs(offset - self._offset) > CLOCK_TOLERANCE.total_seconds():
            log.warning("the clock was changed", extra={"seconds": round(offset - self._offset, 1)})
            self._hurry.set()
        self._offset = offset

    async def check(self, *, max_age: float = 0.0) -> str:
        """What is wrong, or an empty text. Of many callers at once one makes the store write."""
        async with self._lock:
            if self._clock.monotonic() - self._checked_at >= max_age:
                self._note(await self._write())
                self._checked_at = self._clock.monotonic()
        return self.trouble

    async def probe(self) -> str:
        """The same for a readiness probe, which must have an answer soon."""
        checking = asyncio.ensure_future(self.check(max_age=PROBE_AGE_SECONDS))
        try:
            return await asyncio.wait_for(asyncio.shield(checking), PROBE_WAIT_SECONDS)
        except TimeoutError:
            return "it takes too long to write"

    async def _write(self) -> str:
        try:
            await self._tokens.store.heartbeat()
            await self._tokens.save_unsaved()
        except OstiaryError as error:
            return error.cause or error.summary
        return ""

    def _note(self, cause: str) -> None:
        trouble = "it cannot be written" if cause else ""
        if trouble != self.trouble:
            if trouble:
                log.error("the token store cannot be written: nobody can sign in or out", extra={"cause": cause})
            else:
                log.warning("the token store can be written again")
        self.trouble = trouble

    def _clock_offset(self) -> float:
        return self._clock.now().timestamp() - self._clock.monotonic()
