"""Writes what this worker remembers of requests into the token store, so that every replica can explain them.

    record (at the request)  ->  add: a bounded queue  ->  flush, about once a second: one batch of notes

Called by `process.app.shared`, for refusals and for requests that ended without a decision. Callers may cause as many
refusals as they like, so the queue, the notes per second and the notes of each user are bounded. What is left out is
counted; the worker that answered the request still remembers it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from ostiary.core.clock import Clock
from ostiary.core.counting.rates import Buckets
from ostiary.core.secrets.redact import without_tokens
from ostiary.errors import OstiaryError, ProviderError
from ostiary.interfaces.store_abilities.replicas import LARGEST_NOTE, NoteStore

FLUSH_SECONDS = 1.0
NOTES_PER_FLUSH = 50
# As long as a worker remembers them itself.
KEPT_SECONDS = 24 * 3600.0
MOST_WAITING = 500
# For each user: so many at once, then one every half minute.
BURST = 30
PER_SECOND = 1 / 30
MOST_OWNERS = 10_000
LAST_FLUSH_SECONDS = 1.0
_MARK = "REDACTED"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Noted(Generic[T]):
    """What makes a note of a *T*: its key, who caused it, its JSON, and how many of them one who causes them may."""

    key: Callable[[T], str]
    owner: Callable[[T], str]
    json: Callable[[T], object]
    burst: float = BURST
    per_second: float = PER_SECOND


class NoteWriter(Generic[T]):
    """*on_dropped* is called for each that is left out."""

    def __init__(
        self,
        notes: NoteStore,
        topic: str,
        noted: Noted[T],
        *,
        clock: Clock,
        on_dropped: Callable[[], None] = lambda: None,
    ) -> None:
        self._notes = notes
        self._topic = topic
        self._noted = noted
        self._on_dropped = on_dropped
        self._waiting: deque[T] = deque()
        self._shares = Buckets(noted.per_second, noted.burst, clock=clock, limit=MOST_OWNERS)

    def add(self, value: T) -> None:
        """Called at the request: this only puts it into the queue."""
        if len(self._waiting) >= MOST_WAITING or self._shares.take(self._noted.owner(value)):
            self._on_dropped()
        else:
            self._waiting.append(value)

    async def run(self) -> None:
        """Write as long as the gateway runs."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            # What could not be written waits; that the store is away is told by those who need it more.
            with suppress(ProviderError):
                await self.flush()

    async def flush(self) -> None:
        """Write the next batch. Raises `ProviderError` if the store is away; then nothing is lost yet."""
        values = [self._waiting[index] for index in range(min(NOTES_PER_FLUSH, len(self._waiting)))]
        if not values:
            return
        batch = {note_key(self._noted.key(value)): self._data(value) for value in values}
        small = {key: data for key, data in batch.items() if len(data) <= LARGEST_NOTE}
        for _ in range(len(batch) - len(small)):
            self._on_dropped()
        if small:
            await self._notes.put_notes(self._topic, small, seconds=KEPT_SECONDS)
        for _ in values:
            self._waiting.popleft()

    async def finish(self) -> None:
        """Write what waits, because the worker stops; not for long."""
        with suppress(OstiaryError, TimeoutError):
            async with asyncio.timeout(LAST_FLUSH_SECONDS):
                while self._waiting:
                    await self.flush()

    def _data(self, value: T) -> bytes:
        # A path may hold whatever somebody pasted into it.
        return without_tokens(json.dumps(self._noted.json(value)), _MARK).encode()


def note_key(request_id: str) -> str:
    """The key of a request's note. Case does not matter: ids are read out."""
    return request_id.strip().lower()
