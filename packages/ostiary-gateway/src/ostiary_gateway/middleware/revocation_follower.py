"""Follow the gateway's revocations, and determine how long the local list counts as complete.

    run: fetch the list -> apply -> fetch again, a long poll for a later revocation -> apply ...
    ensure_fresh: fetch immediately, for a request that arrives when the list is stale

A response is as fresh as the start of its request. After `max_stale` without a newer one, cached tokens are not used.
After such a gap everything is evicted: a revocation may have entered and left the list unseen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ostiary.core.cache import Cache
from ostiary.core.clock import Clock
from ostiary.errors import OstiaryError
from ostiary_gateway.middleware.bearer import RevokedTokens
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials

log = logging.getLogger("ostiary.backend")

# A long poll takes at most this fraction of `max_stale`, so that after a lost response there is time to retry.
WAITS_PER_MAX_STALE = 4
# Delay while the gateway is unavailable.
RETRY_SECONDS = 1.0

# Fetches the list. Arguments: the last revocation received, and how many seconds the gateway may wait for a later one.
FetchRevoked = Callable[[int | None, int], Awaitable[RevokedCredentials]]
# Called when the list has changed. The flag is true if every cached token must be evicted.
OnRevoked = Callable[[RevokedTokens, bool], None]


class RevocationFollower:
    """Follow revocations in one event loop.

    `epoch` increases with every change, so that callers can discard older lookups.
    """

    def __init__(self, fetch: FetchRevoked, *, max_stale: float, clock: Clock, on_revoked: OnRevoked) -> None:
        self._fetch = fetch
        self._max_stale = max_stale
        self._monotonic = clock.monotonic
        self._on_revoked = on_revoked
        self._questions: Cache[str, RevokedCredentials] = Cache(seconds=0.0, clock=clock)
        self._current: RevokedCredentials | None = None
        self._asked_at = float("-inf")
        self._is_failing = False
        self.tokens = RevokedTokens(RevokedCredentials("", ()))
        self.epoch = 0
        self.fresh_until = float("-inf")

    @property
    def is_stale(self) -> bool:
        return self._monotonic() >= self.fresh_until

    async def ensure_fresh(self) -> None:
        """Fetch the list if it is stale. Concurrent callers share one request. Raises `ProviderError`."""
        if self.is_stale:
            await self._questions.fill("", self._ask_now)

    async def run(self) -> None:
        """Follow revocations until cancelled."""
        while True:
            try:
                await self._poll()
            except OstiaryError as error:
                self._report(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _poll(self) -> None:
        asked_at = self._monotonic()
        # A long poll needs a fresh list to start from. Otherwise fetch the whole list immediately.
        after = None if self.is_stale or self._current is None else self._current.head
        self._apply(await self._fetch(after, int(self._max_stale / WAITS_PER_MAX_STALE)), asked_at)

    async def _ask_now(self) -> RevokedCredentials:
        asked_at = self._monotonic()
        try:
            revoked = await self._fetch(None, 0)
        except OstiaryError as error:
            self._report(error)
            raise
        self._apply(revoked, asked_at)
        return revoked

    def _apply(self, revoked: RevokedCredentials, asked_at: float) -> None:
        before = self._current
        if before is not None and asked_at < self._asked_at and revoked.head <= before.head:
            # The response to an older request, without newer revocations.
            return
        # Measured at the start of the request: a list requested before `fresh_until` still contains every revocation.
        had_gap = asked_at >= self.fresh_until
        is_another_log = before is not None and (revoked.head < before.head or revoked.issuer != before.issuer)
        self._current, self._asked_at = revoked, max(asked_at, self._asked_at)
        if before is None or had_gap or revoked != before:
            self.tokens = RevokedTokens(revoked)
            self.epoch += 1
            self._on_revoked(self.tokens, had_gap or is_another_log)
        self.fresh_until = max(self.fresh_until, asked_at + self._max_stale)
        if self._is_failing:
            self._is_failing = False
            log.warning("the gateway answers again: its revocations are followed")

    def _report(self, error: OstiaryError) -> None:
        """Log the first failure of an outage only."""
        if not self._is_failing:
            self._is_failing = True
            log.error(
                "the gateway's revocations cannot be followed: requests are answered with 503 from %g seconds after the"
                " last answer on: %s%s",
                self._max_stale,
                f"{error.summary}: {error.cause}" if error.cause else error.summary,
                f" ({error.hint})" if error.hint else "",
            )
