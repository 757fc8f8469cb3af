"""Follows the store's revocations by their numbers, and knows how long ago it last had all of them.

    confirm: what came after the last number that was applied? -> apply -> fresh for `max_stale`
    run: confirm -> wait until the store wakes us, a second at most -> confirm ...

Called by the authenticator. Notifications only wake it up: if all of them are lost, the next look finds what is new.
When the store cannot be asked for longer than `max_stale`, what is remembered is no longer good: "could not ask" is
not "yes".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ostiary.core.clock import Clock
from ostiary.interfaces.token_store import Revocation, TokenStore

MAX_STALE_SECONDS = 5.0
# How long nobody looks if nobody is woken, at most; less where `max_stale` asks for it.
POLL_SECONDS = 1.0
POLLS_PER_MAX_STALE = 4

log = logging.getLogger("ostiary.gateway")


class RevocationFeed:
    """Tells *apply* every revocation, in order; *ask_again* is called when some may have been missed."""

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
        # The number of the last revocation that is in force here; None as long as nobody has looked.
        self.applied: int | None = None
        self.fresh_until = float("-inf")

    @property
    def poll_seconds(self) -> float:
        return min(POLL_SECONDS, self._max_stale / POLLS_PER_MAX_STALE)

    @property
    def age(self) -> float:
        """How many seconds ago everything was in force; zero before the first look."""
        return 0.0 if self.applied is None else self._monotonic() - (self.fresh_until - self._max_stale)

    @property
    def is_stale(self) -> bool:
        return self._monotonic() >= self.fresh_until

    async def run(self) -> None:
        """As long as the gateway does. It may fail and be begun again, and has missed nothing then."""
        while True:
            await self.confirm()
            assert self.applied is not None, "confirmed just now"
            await self._store.wait_for_revocations(self.applied, self.poll_seconds)

    async def confirm(self) -> None:
        """Put into force what is new. Raises `ProviderError` if the store cannot be asked."""
        async with self._lock:
            await self._confirm()

    async def ensure_fresh(self) -> None:
        """The same if it has been too long; of many callers one looks, and the others wait for it."""
        if not self.is_stale:
            return
        async with self._lock:
            if self.is_stale:
                await self._confirm()

    async def _confirm(self) -> None:
        asked_at = self._monotonic()
        batch = await self._store.revocations_after(self.applied)
        if self.applied is None or not batch.complete:
            await self._ask_again()
        for revocation in batch.revocations:
            await self._apply(revocation)
        # Not before all of them are in force: after a failure they are told once more.
        self.applied = batch.head
        self.fresh_until = asked_at + self._max_stale

    def report(self) -> str:
        """What a readiness probe is told; nothing while all is well. Says a change in the log, once."""
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
