"""What was refused, and how other requests ended, at all workers of all replicas.

    this worker's memory  ->  the other workers of this machine  ->  the token store

Asked by the API and by the pages, by the id that the caller of a request was told. `replicas.note_writer` puts into the
store what other machines must find there; a store that keeps no notes is not asked.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from typing import TypeVar, cast

from ostiary.core.abilities import ability
from ostiary.gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.authorize.refusals import Refusal
from ostiary.gateway.replicas.note_writer import Noted, note_key
from ostiary.gateway.siblings import messages
from ostiary.gateway.siblings.channel import NoSiblings, Siblings
from ostiary.gateway.siblings.messages import EndedRequestJson, RefusalJson
from ostiary.interfaces.store_abilities.replicas import Note, NoteStore
from ostiary.interfaces.token_store import TokenStore

REFUSAL_TOPIC = "refusals"
ENDED_TOPIC = "ended"
T = TypeVar("T")

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
        siblings: Callable[[], Siblings] = NoSiblings,
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
        siblings: Callable[[], Siblings] = NoSiblings,
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
