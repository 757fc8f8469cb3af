"""Whoever watches at one worker sees the decisions of all, each once, and how many are missing."""

from __future__ import annotations

import json

from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.recent_decisions import PER_USER_AND_SECOND, RecentDecision, RecentDecisions
from ostiary_gateway.replicas import worker_messages as messages
from ostiary_gateway.replicas.decision_feed import MOST_OF_ONE_USER, MOST_WAITING, MOST_WATCHERS, DecisionFeed, Watcher
from ostiary_gateway.testing import FakeClock


class OtherWorker:
    """Another worker, at the other end of the channel, which carries JSON."""

    def __init__(self, recent: RecentDecisions, name: str = "other") -> None:
        self.recent = recent
        self.name = name

    async def ask(self, question: str, data: object) -> list[object]:
        sent = json.loads(json.dumps(data))
        if question == messages.DECISION:
            decision = self.recent.recall(sent)
            answer: object = None if decision is None else messages.decision_json(decision)
        else:
            assert question == messages.DECISIONS
            answer = messages.batch_json(self.recent, self.name, sent)
        return [] if answer is None else [json.loads(json.dumps(answer))]

    def tell(self, what: str, data: object) -> None: ...


def record(recent: RecentDecisions, decision_id: str, user: str = "ann") -> None:
    assert recent.is_watched
    info = RequestInfo("list", "GET", "/api/v1/pods", is_resource=True, resource="pods", upstream="cluster")
    decision = Decision(Verdict.ALLOW, "because")
    recent.record(decision_id, Attributes(UserInfo(user), info), decision, seconds=0.02, actor="boss")


def everything(decision: RecentDecision) -> bool:
    return True


async def waiting(watcher: Watcher) -> tuple[list[str], int]:
    decisions, missed = await watcher.wait(0)
    return [decision.id for decision in decisions], missed


async def test_a_page_shows_the_latest_of_all_workers_and_makes_them_record(clock: FakeClock) -> None:
    ours, theirs = RecentDecisions(clock=clock), RecentDecisions(clock=clock)
    other = OtherWorker(theirs)
    feed = DecisionFeed(ours, lambda: other)
    assert await feed.latest(10) == []
    record(ours, "a")
    clock.advance(1)
    record(theirs, "b")
    latest = await feed.latest(10)
    assert [decision.id for decision in latest] == ["b", "a"]
    assert latest[0] == theirs.recall("b"), "nothing is lost on the way"
    assert [decision.id for decision in await feed.latest(1)] == ["b"]
    assert await feed.recall("b") == latest[0]
    assert await feed.recall("a") == latest[1]
    assert await feed.recall("c") is None


async def test_a_watcher_gets_what_is_new_at_every_worker_once(clock: FakeClock) -> None:
    ours, theirs = RecentDecisions(clock=clock), RecentDecisions(clock=clock)
    other = OtherWorker(theirs)
    feed = DecisionFeed(ours, lambda: other)
    await feed.latest(1)
    record(theirs, "before")
    watcher = await feed.open("root", everything)
    assert watcher is not None
    record(theirs, "a")
    clock.advance(1)
    record(ours, "b")
    await feed.poll()
    await feed.poll()
    assert await waiting(watcher) == (["a", "b"], 0)
    assert await waiting(watcher) == ([], 0)
    other.recent, other.name = RecentDecisions(clock=clock), "another"
    other.recent.watch()
    record(other.recent, "c")
    await feed.poll()
    assert await waiting(watcher) == (["c"], 0), "a worker that was started in the place of one that ended"
    feed.leave(watcher)


async def test_what_is_left_out_is_counted(clock: FakeClock) -> None:
    ours = RecentDecisions(clock=clock)
    feed = DecisionFeed(ours)
    all_of_them = await feed.open("root", everything)
    of_ann = await feed.open("root", lambda decision: decision.attributes.user.username == "ann")
    assert all_of_them is not None
    assert of_ann is not None
    record(ours, "mine")
    for number in range(PER_USER_AND_SECOND + 3):
        record(ours, f"m{number}", "mallory")
    await feed.poll()
    assert await waiting(of_ann) == (["mine"], 3)
    for number in range(4):
        clock.advance(1)
        for each in range(PER_USER_AND_SECOND):
            record(ours, f"{number}-{each}", "mallory")
        await feed.poll()
    ids, missed = await waiting(all_of_them)
    assert len(ids) == MOST_WAITING
    assert missed == 3 + 1 + PER_USER_AND_SECOND + 4 * PER_USER_AND_SECOND - MOST_WAITING
    for watcher in (all_of_them, of_ann):
        feed.leave(watcher)


async def test_watchers_are_bounded_for_one_user_and_in_all(clock: FakeClock) -> None:
    feed = DecisionFeed(RecentDecisions(clock=clock))
    roots = [await feed.open("root", everything) for _ in range(MOST_OF_ONE_USER)]
    assert await feed.open("root", everything) is None
    others = [await feed.open(f"user {number}", everything) for number in range(MOST_WATCHERS - MOST_OF_ONE_USER)]
    assert None not in (*roots, *others)
    assert feed.is_full_for("somebody else")
    (first, *rest) = [watcher for watcher in (*roots, *others) if watcher is not None]
    feed.leave(first)
    assert not feed.is_full_for("root")
    for watcher in rest:
        feed.leave(watcher)


async def test_a_new_configuration_ends_all_streams(clock: FakeClock) -> None:
    feed = DecisionFeed(RecentDecisions(clock=clock))
    watcher = await feed.open("root", everything)
    assert watcher is not None
    feed.close()
    assert watcher.is_closed
    assert await feed.open("root", everything) is None
    feed.leave(watcher)
