"""Writes down when API tokens were last used: seldom, and never while a request waits for it.

A token's use is noted when it is looked up in the store. It is written if the store knows of none in the last minutes,
be it of this worker or another.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from ostiary.core.clock import Clock
from ostiary.core.tokens import Tokens
from ostiary.interfaces.token_store import Session

# A use that was written down is not written again before this has passed.
PAUSE = timedelta(minutes=5)
# How long uses are collected before they are written together.
COLLECT_SECONDS = 1.0
# More tokens than are looked up in that time.
MOST_WAITING = 10_000


class TokenUse:
    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._waiting: dict[str, datetime] = {}
        self._news = asyncio.Event()

    def note(self, session: Session) -> None:
        now = self._clock.now()
        is_known = session.last_used_at is not None and now - session.last_used_at < PAUSE
        if not is_known and len(self._waiting) < MOST_WAITING:
            self._waiting[session.id] = now
            self._news.set()

    async def run(self) -> None:
        """Runs as long as the gateway does."""
        while True:
            await self._news.wait()
            await asyncio.sleep(COLLECT_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Write what was noted. If the store cannot be asked it is lost: it tells no more than when, about."""
        uses, self._waiting = self._waiting, {}
        self._news.clear()
        if uses:
            await self._tokens.store.note_use(uses)
