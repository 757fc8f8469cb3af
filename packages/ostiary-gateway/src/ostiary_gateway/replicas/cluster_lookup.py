"""Look up denials and ended requests, by request id, across all workers of all replicas.

    this worker's memory  ->  the other workers of this machine  ->  the token store

`MessageWriter` stores them for the other replicas. A store without `NoteStore` is not queried.
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

FLUSH_SECONDS = 1.0
NOTES_PER_FLUSH = 50
# The same retention as in a worker's memory.
KEPT_SECONDS = 24 * 3600.0
MOST_WAITING = 500
# Per user: a burst, then one every half minute.
BURST = 30
PER_SECOND = 1 / 30
MOST_OWNERS = 10_000
LAST_FLUSH_SECONDS = 1.0
_MARK = "REDACTED"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Noted(Generic[T]):
    """How a *T* is stored as a message: key, owner who is charged for it, JSON, and the owner's rate limit."""

    key: Callable[[T], str]
    owner: Callable[[T], str]
    json: Callable[[T], object]
    burst: float = BURST
    per_second: float = PER_SECOND


class MessageWriter(Generic[T]):
    """Write this worker's records of requests to the token store, so that every replica can explain them.

        add (during the request): a bounded queue  ->  flush, about once a second: one batch of messages

    Clients can cause any number of denials, so the queue, the messages per second and the messages per owner are
    bounded.
    *on_dropped* is called for each record that is not stored. The worker that served the request still caches it.
    """

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
        """Queue *value*. Does no I/O, so it is safe to call during a request."""
        if len(self._waiting) >= MOST_WAITING or self._shares.take(self._noted.owner(value)):
            self._on_dropped()
        else:
            self._waiting.append(value)

    async def run(self) -> None:
        """Write batches until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            # The queue keeps what could not be written. Other components report the outage of the store.
            with suppress(ProviderError):
                await self.flush()

    async def flush(self) -> None:
        """Write the next batch. Raises `ProviderError` and keeps the batch if the store is unavailable."""
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
        """Write the rest of the queue when the worker stops, for at most `LAST_FLUSH_SECONDS`."""
        with suppress(OstiaryError, TimeoutError):
            async with asyncio.timeout(LAST_FLUSH_SECONDS):
                while self._waiting:
                    await self.flush()

    def _data(self, value: T) -> bytes:
        # A client may have pasted a token into the path.
        return without_tokens(json.dumps(self._noted.json(value)), _MARK).encode()


def note_key(request_id: str) -> str:
    """Return the key of a request's message. Case-insensitive, because users read ids out to operators."""
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
    # Behind a proxy, many users share one address.
    burst=100,
    per_second=1.0,
)


class EveryRefusal:
    """The denials of all workers. Methods raise `ProviderError` if the store is needed and unavailable."""

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
        """Return the latest denials, newest first."""
        ours = self._authorizer.recent_refusals(limit)
        answers = cast(list[list[RefusalJson]], await self._siblings().ask(messages.REFUSALS, limit))
        theirs = [messages.refusal_from_json(refusal) for answer in answers for refusal in answer]
        notes = [] if self._notes is None else await self._notes.latest_notes(REFUSAL_TOPIC, limit)
        noted = [refusal for note in notes if (refusal := _read(note, _refusal)) is not None]
        # The store also holds the denials of this machine.
        by_id = {refusal.id: refusal for refusal in (*noted, *theirs, *ours)}
        return heapq.nlargest(limit, by_id.values(), key=lambda refusal: refusal.at)


class EveryEndedRequest:
    """Like `EveryRefusal`, but for requests that ended without a decision."""

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
    """Decode a message. Returns None if another version wrote it in a form that this one cannot read."""
    try:
        return decode(json.loads(note.data))
    except (ValueError, KeyError, TypeError):
        return None


def _refusal(value: object) -> Refusal:
    return messages.refusal_from_json(cast(RefusalJson, value))


def _ended_request(value: object) -> EndedRequest:
    return messages.ended_from_json(cast(EndedRequestJson, value))
