"""Decisions are kept while somebody watches, and nobody's requests hide those of the others."""

from __future__ import annotations

from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.recent_decisions import (
    ENTRIES_PER_USER,
    PER_SECOND,
    PER_USER_AND_SECOND,
    SIZE_PER_USER,
    RecentDecisions,
)
from ostiary_gateway.testing import FakeClock

ALLOWED = Decision(Verdict.ALLOW, "because")


def record(recent: RecentDecisions, decision_id: str, user: str = "ann", *, path: str = "/x") -> None:
    attributes = Attributes(UserInfo(user), RequestInfo("get", "GET", path))
    recent.record(decision_id, attributes, ALLOWED, seconds=0.01)


def ids(recent: RecentDecisions, limit: int = 10_000) -> list[str]:
    return [decision.id for decision in recent.latest(limit)]


def test_nothing_is_kept_while_nobody_watches(clock: FakeClock) -> None:
    recent = RecentDecisions(clock=clock)
    assert not recent.is_watched
    record(recent, "a")
    assert ids(recent) == []
    recent.watch(10)
    record(recent, "b")
    clock.advance(9)
    record(recent, "c")
    assert ids(recent) == ["c", "b"]
    clock.advance(1)
    record(recent, "d")
    assert not recent.is_watched
    assert ids(recent) == [], "what was kept is forgotten"


def test_whoever_watches_longest_counts(clock: FakeClock) -> None:
    recent = RecentDecisions(clock=clock)
    recent.watch(100)
    recent.watch(1)
    clock.advance(50)
    record(recent, "a")
    assert ids(recent) == ["a"]


def test_one_user_neither_hides_nor_evicts_the_others(clock: FakeClock) -> None:
    recent = RecentDecisions(clock=clock)
    recent.watch(10_000)
    record(recent, "first", "ann")
    for number in range(PER_SECOND * 2):
        record(recent, f"m{number}", "mallory")
    record(recent, "ann-1", "ann")
    assert recent.recall("ann-1") is not None
    assert sum(each.startswith("m") for each in ids(recent)) == PER_USER_AND_SECOND
    batch = recent.after(0, 0, 10_000)
    assert batch.missed == batch.left_out == PER_SECOND * 2 - PER_USER_AND_SECOND
    for second in range(2 * ENTRIES_PER_USER // PER_USER_AND_SECOND):
        clock.advance(1)
        for number in range(PER_USER_AND_SECOND):
            record(recent, f"n{second}-{number}", "mallory")
    assert recent.recall("first") is not None
    assert len(ids(recent)) <= ENTRIES_PER_USER + 2


def test_many_users_are_bounded_together(clock: FakeClock) -> None:
    recent = RecentDecisions(clock=clock)
    recent.watch()
    for number in range(PER_SECOND + 5):
        record(recent, f"d{number}", f"user {number}")
    assert len(ids(recent)) == PER_SECOND
    clock.advance(1)
    record(recent, "next")
    assert ids(recent, 1) == ["next"]


def test_long_paths_are_bounded_in_bytes(clock: FakeClock) -> None:
    recent = RecentDecisions(clock=clock)
    recent.watch(10_000)
    for number in range(200):
        clock.advance(1)
        record(recent, f"d{number}", path="/" + "x" * 15_000)
    kept = ids(recent)
    assert kept[0] == "d199"
    assert len(kept) * 15_000 <= SIZE_PER_USER


def test_what_came_after_a_number_is_told_once(clock: FakeClock) -> None:
    recent = RecentDecisions(clock=clock)
    recent.watch()
    for number in range(5):
        record(recent, f"d{number}")
    first = recent.after(0, 0, 3)
    assert [each.id for each in first.decisions] == ["d2", "d3", "d4"], "the latest, the oldest first"
    assert (first.number, first.missed) == (5, 2)
    record(recent, "d5")
    second = recent.after(first.number, first.left_out, 3)
    assert [each.id for each in second.decisions] == ["d5"]
    assert second.missed == 0
    assert recent.after(second.number, second.left_out, 3).decisions == []
    restarted = recent.after(1000, 7, 1)
    assert [each.id for each in restarted.decisions] == ["d5"], "the number of a worker that was here before"


def test_a_watch_is_recorded_when_it_begins(clock: FakeClock) -> None:
    recent = RecentDecisions(clock=clock)
    recent.watch()
    attributes = Attributes(UserInfo("ann"), RequestInfo("watch", "GET", "/x"))
    recent.record("w", attributes, ALLOWED, seconds=None)
    recent.record("w", attributes, ALLOWED, seconds=60.0)
    (decision,) = recent.latest(10)
    assert decision.seconds is None
    assert recent.recall(" W ") == decision
