"""A refusal is found wherever it was made: in this worker, in another one of this machine, at another replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, RequestInfo, Verdict
from ostiary_gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.denials import RecentDenials, Refusal
from ostiary_gateway.replicas.cluster_lookup import (
    ENDED_TOPIC,
    NOTED_ENDED,
    NOTED_REFUSALS,
    REFUSAL_TOPIC,
    EveryEndedRequest,
    EveryRefusal,
    MessageWriter,
)
from ostiary_gateway.replicas.worker_messages import ENDED, REFUSAL, REFUSALS, ended_json, refusal_json
from ostiary_gateway.testing import FakeClock
from tests.support.noting_store import NotingStore
from tests.unit.ostiary_gateway.replicas.test_worker_messages import ANN, AT, refusal, sent


class Workers:
    """Answer what they are told to, and keep what they were asked."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.questions: list[tuple[str, object]] = []

    async def ask(self, question: str, data: object) -> list[object]:
        self.questions.append((question, data))
        return self.answers

    def tell(self, what: str, data: object) -> None: ...


GET = RequestInfo("get", "GET", "/x")


async def test_a_refusal_is_recalled_here_before_anybody_else_is_asked() -> None:
    authorizer, siblings = Authorizer([]), Workers()
    decision_id = authorizer.record(Attributes(ANN, GET), Decision(Verdict.DENY))
    every = EveryRefusal(authorizer, lambda: siblings)
    found = await every.recall(decision_id)
    assert found is not None
    assert siblings.questions == []
    assert await every.recall("another") is None
    siblings.answers = [sent(refusal_json(refusal("another", GET)))]
    assert await every.recall("another") == refusal("another", GET)
    assert siblings.questions == [(REFUSAL, "another")] * 2


async def test_the_latest_refusals_of_all_workers_come_newest_first() -> None:
    clock = FakeClock()
    authorizer = Authorizer([], clock=clock)
    ours = authorizer.record(Attributes(ANN, GET), Decision(Verdict.DENY))
    now = clock.now()
    theirs = [refusal(name, GET, now + timedelta(seconds=after)) for name, after in (("new", 1), ("old", -1))]
    siblings = Workers([sent(refusal_json(theirs[0]))], [sent(refusal_json(theirs[1]))])
    latest = await EveryRefusal(authorizer, lambda: siblings).recent(2)
    assert [each.id for each in latest] == ["new", ours]
    assert siblings.questions == [(REFUSALS, 2)]


async def test_how_a_request_ended_is_recalled_here_before_anybody_else_is_asked() -> None:
    clock = FakeClock()
    ended, siblings = EndedRequests(clock=clock), Workers()
    ended.record(EndedRequest("ours", clock.now(), 502))
    every = EveryEndedRequest(ended, lambda: siblings)
    assert await every.recall("ours") == EndedRequest("ours", clock.now(), 502)
    assert siblings.questions == []
    assert await every.recall("theirs") is None
    siblings.answers = [sent(ended_json(EndedRequest("theirs", AT, 504)))]
    assert await every.recall("theirs") == EndedRequest("theirs", AT, 504)
    assert siblings.questions == [(ENDED, "theirs")] * 2


# --- at another replica ---


@pytest.fixture
async def store(clock: FakeClock, tmp_path: Path) -> AsyncIterator[NotingStore]:
    store = NotingStore(str(tmp_path / "tokens.db"), clock=clock)
    yield store
    await store.close()


class OtherReplica:
    """A replica that refuses, and writes it down."""

    def __init__(self, store: NotingStore, clock: FakeClock) -> None:
        self.refusals, self.ended = RecentDenials(clock=clock), EndedRequests(clock=clock)
        self.refusal_notes: MessageWriter[Refusal] = MessageWriter(store, REFUSAL_TOPIC, NOTED_REFUSALS, clock=clock)
        self.ended_notes: MessageWriter[EndedRequest] = MessageWriter(store, ENDED_TOPIC, NOTED_ENDED, clock=clock)
        self.refusals.on_recorded = self.refusal_notes.add
        self.ended.on_recorded = self.ended_notes.add

    def refuse(self, decision_id: str) -> None:
        self.refusals.record(Attributes(ANN, GET), Decision(Verdict.DENY, "why"), decision_id)


async def test_what_another_replica_refused_is_recalled_from_the_store(store: NotingStore, clock: FakeClock) -> None:
    other = OtherReplica(store, clock)
    other.refuse("abc-1")
    every = EveryRefusal(Authorizer([], clock=clock), store=store)
    assert await every.recall("abc-1") is None, "it has not been written yet"
    await other.refusal_notes.flush()
    expected = Refusal("abc-1", Attributes(ANN, GET), Decision(Verdict.DENY, "why"), clock.now())
    assert await every.recall(" ABC-1 ") == expected
    assert await every.recall("abc-2") is None


async def test_a_request_that_ended_elsewhere_is_recalled_from_the_store(store: NotingStore, clock: FakeClock) -> None:
    other, request = OtherReplica(store, clock), EndedRequest("abc-1", clock.now(), 401, "why", address="192.0.2.1")
    other.ended.record(request)
    await other.ended_notes.flush()
    assert await EveryEndedRequest(EndedRequests(clock=clock), store=store).recall("abc-1") == request


async def test_the_latest_of_all_replicas_are_listed_once_each(store: NotingStore, clock: FakeClock) -> None:
    here, other = OtherReplica(store, clock), OtherReplica(store, clock)
    for number, replica in enumerate((here, other, here, other)):
        clock.advance(1)
        replica.refuse(f"id-{number}")
    for replica in (here, other):
        await replica.refusal_notes.flush()
    every = EveryRefusal(Authorizer([], clock=clock, refusals=here.refusals), store=store)
    assert [each.id for each in await every.recent(10)] == ["id-3", "id-2", "id-1", "id-0"]
    assert [each.id for each in await every.recent(3)] == ["id-3", "id-2", "id-1"]


async def test_a_store_that_is_away_is_not_a_refusal_that_nobody_knows(store: NotingStore, clock: FakeClock) -> None:
    here = OtherReplica(store, clock)
    here.refuse("ours")
    store.away = True
    every = EveryRefusal(Authorizer([], clock=clock, refusals=here.refusals), store=store)
    assert await every.recall("ours") is not None
    with pytest.raises(ProviderError):
        await every.recall("theirs")
    with pytest.raises(ProviderError):
        await EveryEndedRequest(here.ended, store=store).recall("theirs")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b'{"id": "x"}'])
async def test_a_note_of_another_version_that_cannot_be_read_is_none(
    store: NotingStore, clock: FakeClock, data: bytes
) -> None:
    for topic in (REFUSAL_TOPIC, ENDED_TOPIC):
        await store.put_notes(topic, {"x": data}, seconds=60)
    every = EveryRefusal(Authorizer([], clock=clock), store=store)
    assert await every.recall("x") is None
    assert await every.recent(10) == []
    assert await EveryEndedRequest(EndedRequests(clock=clock), store=store).recall("x") is None
