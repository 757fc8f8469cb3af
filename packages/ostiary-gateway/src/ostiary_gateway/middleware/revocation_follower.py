"""Follows the gateway's revocations, and knows until when all of them are in force here.

    run: ask for the list -> apply -> ask again, answered as soon as there is a later revocation -> apply ...
    ensure_fresh: the same at once, for a request that comes when nobody has followed for too long

Called by the authenticator. An answer counts from the moment at which it was asked for. When `max_stale` has passed
since then, what is remembered here is not used any more, whatever the reason. After such a gap all of it is forgotten:
a revocation may have come and left the list again.
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

# The gateway keeps a question this part of `max_stale` at most, so that a lost answer leaves time for others.
WAITS_PER_MAX_STALE = 4
# While the gateway cannot be asked.
RETRY_SECONDS = 1.0

# Asks for the list: after which revocation, and how many seconds the gateway may wait for a later one.
FetchRevoked = Callable[[int | None, int], Awaitable[RevokedCredentials]]
# Told that the list has changed; True if everything that is remembered must be forgotten.
OnRevoked = Callable[[RevokedTokens, bool], None]


class RevocationFollower:
    """One event loop uses it. `epoch` rises with every change, so that an answer from before it is not believed."""

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
        """Ask for the list if nobody has for too long; of many callers one asks. Raises `ProviderError`."""
        if self.is_stale:
            await self._questions.fill("", self._ask_now)

    async def run(self) -> None:
        """Follow as long as the API runs."""
        while True:
            try:
                await self._poll()
            except OstiaryError as error:
                self._report(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _poll(self) -> None:
        asked_at = self._monotonic()
        # Without an answer that still holds there is nothing to wait for.
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
            # Asked for before the one that is in force, and not later than that by its number.
            return
        # Judged by when it was asked for: from then on the next list would tell what is missing.
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
        """Once for each time that the gateway goes away, and not for each question."""
        if not self._is_failing:
            self._is_failing = True
            log.error(
                "the gateway's revocations cannot be followed: requests are answered with 503 from %g seconds after the"
                " last answer on: %s%s",
                self._max_stale,
                f"{error.summary}: {error.cause}" if error.cause else error.summary,
                f" ({error.hint})" if error.hint else "",
            )
