"""Check periodically that the token store is writable, by writing the time into it.

A store that is readable but not writable still accepts tokens and cannot revoke anything, so readiness probes must not
report it as healthy. A clock that is set back is noticed here, and the store corrects its times immediately.
Revocations that could not be stored are retried.
"""

from __future__ import annotations

import asyncio
import logging

from ostiary.core.clock import Clock
from ostiary.errors import OstiaryError
from ostiary_gateway.sessions import CLOCK_TOLERANCE, Tokens

HEARTBEAT_SECONDS = 10.0
# Interval while there is an error or an unstored revocation.
RETRY_SECONDS = 1.0
# A probe accepts a result up to the first age, and waits for a new one up to the second time.
PROBE_AGE_SECONDS = 2.0
PROBE_WAIT_SECONDS = 1.5

log = logging.getLogger("ostiary.gateway")


class StoreHealth:
    """Periodic write check of the token store."""

    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._lock = asyncio.Lock()
        self._hurry = asyncio.Event()
        self._checked_at = float("-inf")
        self._offset = self._clock_offset()
        self.trouble = ""

    async def run(self) -> None:
        """Check while the gateway runs."""
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
        """Check now: a revocation is waiting to be stored."""
        self._hurry.set()

    def tick(self) -> None:
        """Detect jumps of the clock, and check the store then. Called about twice per second."""
        offset = self._clock_offset()
        if abs(offset - self._offset) > CLOCK_TOLERANCE.total_seconds():
            log.warning("the clock was changed", extra={"seconds": round(offset - self._offset, 1)})
            self._hurry.set()
        self._offset = offset

    async def check(self, *, max_age: float = 0.0) -> str:
        """Return the error, or an empty string. Concurrent callers share one check."""
        async with self._lock:
            if self._clock.monotonic() - self._checked_at >= max_age:
                self._note(await self._write())
                self._checked_at = self._clock.monotonic()
        return self.trouble

    async def probe(self) -> str:
        """Like `check`, for a readiness probe that needs a response soon."""
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
