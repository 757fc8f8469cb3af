"""Refusals are remembered under ids that can be read out, for a day, and nobody pushes out those of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.denials import RecentDenials
from ostiary_gateway.testing import FakeClock

DENIED = Decision(Verdict.DENY, "never")
GET_POD = Attributes(UserInfo("alice"), RequestInfo("get", "GET", "/api/v1/pods", True, resource="pods"))


@pytest.fixture
def refusals(clock: FakeClock) -> RecentDenials:
    return RecentDenials(clock=clock)


def by(username: str, *, path: str = "/api/v1/pods") -> Attributes:
    return Attributes(UserInfo(username), replace(GET_POD.request, path=path))


def test_a_new_id_is_sixteen_letters_and_digits_in_lower_case(refusals: RecentDenials) -> None:
    ids = {refusals.record(GET_POD, DENIED) for _ in range(50)}
    assert len(ids) == 50
    assert {len(decision_id) for decision_id in ids} == {16}
    assert all(decision_id.isalnum() and decision_id == decision_id.lower() for decision_id in ids)


def test_the_id_of_the_request_is_taken_where_it_has_one(refusals: RecentDenials, clock: FakeClock) -> None:
    assert refusals.record(GET_POD, DENIED, "1d9c-4f") == "1d9c-4f"
    refusal = refusals.recall("1d9c-4f")
    assert refusal is not None
    assert (refusal.id, refusal.attributes, refusal.decision, refusal.at) == ("1d9c-4f", GET_POD, DENIED, clock.now())


def test_an_id_that_was_read_out_is_found_whatever_its_case(refusals: RecentDenials) -> None:
    decision_id = refusals.record(GET_POD, DENIED)
    assert refusals.recall(f"\t{decision_id.upper()} \n") is not None
    assert refusals.recall(decision_id[:-1]) is None


def test_a_refusal_is_remembered_for_a_day(refusals: RecentDenials, clock: FakeClock) -> None:
    decision_id = refusals.record(GET_POD, DENIED)
    clock.advance(hours=24, seconds=-1)
    assert refusals.recall(decision_id) is not None
    clock.advance(1)
    assert refusals.recall(decision_id) is None


def test_the_latest_are_told_with_the_newest_first(refusals: RecentDenials) -> None:
    ids = [refusals.record(GET_POD, DENIED) for _ in range(5)]
    assert [refusal.id for refusal in refusals.recent(3)] == ids[:1:-1]
    assert [refusal.id for refusal in refusals.recent(5)] == ids[::-1]
    assert [refusal.id for refusal in refusals.recent(50)] == ids[::-1]
    assert refusals.recent(0) == []


def test_no_more_than_a_hundred_are_told_at_once(refusals: RecentDenials) -> None:
    ids = [refusals.record(GET_POD, DENIED) for _ in range(120)]
    assert [refusal.id for refusal in refusals.recent(1000)] == ids[:-101:-1]


def test_one_users_refusals_evict_only_that_users_refusals(clock: FakeClock) -> None:
    refusals = RecentDenials(clock=clock, entries=160)
    mine = refusals.record(by("alice"), DENIED)
    flood = [refusals.record(by("mallory"), DENIED) for _ in range(500)]
    assert refusals.recall(mine) is not None
    assert refusals.recall(flood[0]) is None
    assert refusals.recall(flood[-1]) is not None


@pytest.mark.parametrize("what", ["a long path", "a long reason"])
def test_what_is_counted_are_bytes_so_long_requests_take_more_room(refusals: RecentDenials, what: str) -> None:
    """A share of half a MiB holds about forty refusals of ten thousand bytes each, and hundreds of short ones."""
    text = "x" * 10_000
    attributes = by("mallory", path=text if what == "a long path" else "/")
    decision = Decision(Verdict.DENY, text if what == "a long reason" else "never")
    ids = [refusals.record(attributes, decision) for _ in range(100)]
    kept = sum(refusals.recall(decision_id) is not None for decision_id in ids)
    assert 30 < kept < 52
    short = [refusals.record(by("alice"), DENIED) for _ in range(100)]
    assert all(refusals.recall(decision_id) is not None for decision_id in short)


def test_all_users_together_take_no_more_than_eight_mebibytes(refusals: RecentDenials) -> None:
    text = "x" * 100_000
    ids = [refusals.record(by(f"user-{number}", path=text), DENIED) for number in range(100)]
    kept = [decision_id for decision_id in ids if refusals.recall(decision_id) is not None]
    assert 70 < len(kept) < 84
    assert kept[-1] == ids[-1], "the oldest make room"
