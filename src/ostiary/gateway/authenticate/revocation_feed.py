"""Follows the store's revocations by their sequence numbers, and knows since when all of them are in force here.

    confirm: what came after the last number that was applied? -> apply -> fresh for `max_stale`
    run: confirm -> wait until the store wakes us, a second at most -> confirm ...

Called by the authenticator. Notifications only wake it up: if all of them are lost, the next poll finds what is new.
When the store cannot be asked for longer than `max_stale`, the tokens in memory are no longer trusted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ostiary.core.clock import Clock
from ostiary.interfaces.token_store import Revocation, TokenStore

MAX_STALE_SECONDS = 5.0
# The longest time between two polls when no notification comes; less if `max_stale` is short.
POLL_SECONDS = 1.0
POLLS_PER_MAX_STALE = 4

log = logging.getLogger("ostiary.gateway")


class RevocationFeed:
    """Calls *apply* for every revocation, in order, and *ask_again* when some may have been missed."""

    def __init__(
        self,
        store: TokenStore,
        clock: Clock,
        *,
        max_stale: float,
        apply: Callable[[Revocation], Awaitable[None]],
        ask_again: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._monotonic = clock.monotonic
        self._max_stale = max_stale
        self._apply, self._ask_again = apply, ask_again
        self._lock = asyncio.Lock()
        self._reported = False
        self._advanced = asyncio.Event()
        # The sequence number of the last revocation that is in force here; None before the first poll.
        self.applied: int | None = None
        self.fresh_until = float("-inf")

    @property
    def poll_seconds(self) -> float:
        return min(POLL_SECONDS, self._max_stale / POLLS_PER_MAX_STALE)

    @property
    def age(self) -> float:
        """How many seconds ago all revocations were in force; zero before the first poll."""
        return 0.0 if self.applied is None else self._monotonic() - (self.fresh_until - self._max_stale)

    @property
    def is_stale(self) -> bool:
        return self._monotonic() >= self.fresh_until

    async def run(self) -> None:
        """Poll as long as the gateway runs. It may fail and be started again; nothing is missed then."""
        while True:
            await self.confirm()
            assert self.applied is not None, "confirmed just now"
            await self._store.wait_for_revocations(self.applied, self.poll_seconds)

    async def confirm(self) -> None:
        """Put into force what is new. Raises `ProviderError` if the store cannot be asked."""
        async with self._lock:
            await self._confirm()

    async def ensure_fresh(self) -> None:
        """`confirm` if the last time is too long ago. Of many callers one asks, and the others wait for it."""
        if not self.is_stale:
            return
        async with self._lock:
            if self.is_stale:
                await self._confirm()

    async def wait_until_applied(self, after: int, seconds: float) -> None:
        """Return when a revocation of a larger number than *after* is in force here; after *seconds* at the latest.

        For those who tell others of revocations; only `run` may ask the store to wait.
        """
        advanced = self._advanced
        if self.applied is None or self.applied <= after:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await advanced.wait()

    async def _confirm(self) -> None:
        asked_at = self._monotonic()
        batch = await self._store.revocations_after(self.applied)
        if self.applied is None or not batch.complete:
            await self._ask_again()
        for revocation in batch.revocations:
            await self._apply(revocation)
        is_new = self.applied != batch.head
        # Only when all of them are in force: after a failure they are applied once more.
        self.applied = batch.head
        if is_new:
            self._advanced.set()
            self._advanced = asyncio.Event()
        self.fresh_until = asked_at + self._max_stale

    def report(self) -> str:
        """What a readiness probe is told, empty while all is well. A change is logged once."""
        trouble = ""
        if self.applied is not None and self.is_stale:
            trouble = f"not confirmed for {self.age:.0f} s: requests are refused"
        if bool(trouble) != self._reported:
            self._reported = bool(trouble)
            if trouble:
                extra = {"seconds": round(self.age, 1), "max_stale": self._max_stale}
                log.error("revocations cannot be confirmed: requests are refused with 503", extra=extra)
            else:
                log.warning("revocations are confirmed again")
        return trouble
