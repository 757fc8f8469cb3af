"""What was refused, and how other requests ended, at all workers of all replicas.

    this worker's memory  ->  the other workers of this machine  ->  the token store

Asked by the API and by the pages, by the id that the caller of a request was told. `replicas.note_writer` puts into the
store what other machines must find there; a store that keeps no notes is not asked.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from ostiary.core.clock import Clock
from ostiary.core.redaction import without_tokens
from ostiary.errors import OstiaryError, ProviderError
from ostiary_gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.denials import Refusal
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.store_capabilities import LARGEST_NOTE, Note, NoteStore
from ostiary_gateway.interfaces.token_store import TokenStore
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.replicas import worker_messages as messages
from ostiary_gateway.replicas.worker_ipc import NoOtherWorkers, Workers
from ostiary_gateway.replicas.worker_messages import EndedRequestJson, RefusalJson

# Writes what this worker remembers of requests into the token store, so that every replica can explain them.
#
#     record (at the request)  ->  add: a bounded queue  ->  flush, about once a second: one batch of notes
#
# Called by `process.app.shared`, for refusals and for requests that ended without a decision. Callers may cause as many
# refusals as they like, so the queue, the notes per second and the notes of each user are bounded. What is left out is
# counted; the worker that answered the request still remembers it.

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


class MessageWriter(Generic[T]):
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


REFUSAL_TOPIC = "refusals"
ENDED_TOPIC = "ended"


NOTED_REFUSALS: Noted[Refusal] = Noted(
    key=lambda refusal: refusal.id,
    owner=lambda refusal: refusal.attributes.user.username,
    json=messages.refusal_json,
)
NOTED_ENDED: Noted[EndedRequest] = Noted(
    key=lambda request: request.id,
    owner=lambda request: request.address,
    json=messages.ended_json,
    # Behind a proxy, many people have one address.
    burst=100,
    per_second=1.0,
)


class EveryRefusal:
    """The refusals of all workers. Raises `ProviderError` where the store would have to be asked and cannot be."""

    def __init__(
        self,
        authorizer: Authorizer,
        siblings: Callable[[], Workers] = NoOtherWorkers,
        store: TokenStore | None = None,
    ) -> None:
        self._authorizer = authorizer
        self._siblings = siblings
        self._notes = None if store is None else ability(store, NoteStore)

    async def recall(self, decision_id: str) -> Refusal | None:
        refusal = self._authorizer.recall(decision_id)
        if refusal is not None:
            return refusal
        answers = await self._siblings().ask(messages.REFUSAL, decision_id)
        if answers:
            return messages.refusal_from_json(cast(RefusalJson, answers[0]))
        return await _find(self._notes, REFUSAL_TOPIC, decision_id, _refusal)

    async def recent(self, limit: int) -> list[Refusal]:
        """The latest ones, the newest first."""
        ours = self._authorizer.recent_refusals(limit)
        answers = cast(list[list[RefusalJson]], await self._siblings().ask(messages.REFUSALS, limit))
        theirs = [messages.refusal_from_json(refusal) for answer in answers for refusal in answer]
        notes = [] if self._notes is None else await self._notes.latest_notes(REFUSAL_TOPIC, limit)
        noted = [refusal for note in notes if (refusal := _read(note, _refusal)) is not None]
        # What this machine remembers is in the store as well.
        by_id = {refusal.id: refusal for refusal in (*noted, *theirs, *ours)}
        return heapq.nlargest(limit, by_id.values(), key=lambda refusal: refusal.at)


class EveryEndedRequest:
    """How requests without a decision ended at all workers. Raises `ProviderError` as `EveryRefusal` does."""

    def __init__(
        self,
        ended: EndedRequests,
        siblings: Callable[[], Workers] = NoOtherWorkers,
        store: TokenStore | None = None,
    ) -> None:
        self._ended = ended
        self._siblings = siblings
        self._notes = None if store is None else ability(store, NoteStore)

    async def recall(self, request_id: str) -> EndedRequest | None:
        request = self._ended.recall(request_id)
        if request is not None:
            return request
        answers = await self._siblings().ask(messages.ENDED, request_id)
        if answers:
            return messages.ended_from_json(cast(EndedRequestJson, answers[0]))
        return await _find(self._notes, ENDED_TOPIC, request_id, _ended_request)


async def _find(notes: NoteStore | None, topic: str, request_id: str, decode: Callable[[object], T]) -> T | None:
    note = None if notes is None else await notes.find_note(topic, note_key(request_id))
    return None if note is None else _read(note, decode)


def _read(note: Note, decode: Callable[[object], T]) -> T | None:
    """What is noted; None for what another version has written and this one cannot read."""
    try:
        return decode(json.loads(note.data))
    except (ValueError, KeyError, TypeError):
        return None


def _refusal(value: object) -> Refusal:
    return messages.refusal_from_json(cast(RefusalJson, value))


def _ended_request(value: object) -> EndedRequest:
    return messages.ended_from_json(cast(EndedRequestJson, value))
