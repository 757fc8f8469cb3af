"""The figures of a replica are those of its workers together."""

from __future__ import annotations

from ostiary_gateway.replicas.workers import MIXED, NO_WORKER, RequestRate, WorkerState, merge_states


def state(pid: int = 1, **more: object) -> WorkerState:
    fields = {
        "pid": pid,
        "configuration": "c1",
        "configured_seconds": 10.0,
        "requests": 0.0,
        "in_flight": 1,
        "open_streams": 2,
        "tokens": 3,
        "revocation": 7,
        "confirmed_seconds": 0.5,
        "checks": [("token store", "")],
    }
    return {**fields, **more}  # type: ignore[typeddict-item]


def test_load_is_summed_and_a_replica_is_as_far_as_its_slowest_worker() -> None:
    figures = merge_states([state(1, revocation=7, tokens=3), state(2, revocation=5, confirmed_seconds=2.0, tokens=9)])
    assert (figures.in_flight, figures.open_streams, figures.tokens, figures.workers) == (2, 4, 9, 2)
    assert (figures.revocation, figures.confirmed_seconds, figures.trouble) == (5, 2.0, "")


def test_a_worker_that_has_not_asked_yet_has_applied_nothing() -> None:
    assert merge_states([state(1), state(2, revocation=None)]).revocation is None


def test_the_first_thing_that_is_wrong_is_named() -> None:
    bad = state(2, checks=[("accepting requests", ""), ("revocations", "not confirmed")])
    assert merge_states([state(1), bad]).trouble == "revocations: not confirmed"
    assert merge_states([state(1), None]).trouble == "a worker does not answer"
    assert merge_states([None]).trouble == NO_WORKER
    assert merge_states([]).trouble == NO_WORKER


def test_workers_with_different_configurations_are_told() -> None:
    figures = merge_states([state(1), state(2), state(3, configuration="c2")])
    assert (figures.configuration, figures.trouble) == ("c1", MIXED)


def test_the_rate_is_what_came_between_two_looks() -> None:
    rate = RequestRate()
    rate.update([state(1, requests=1000.0)], 10.0)
    assert rate.per_second == 0.0
    rate.update([state(1, requests=1030.0), state(2, requests=15.0)], 13.0)
    assert rate.per_second == 15.0


def test_a_worker_that_was_replaced_does_not_make_the_rate_negative() -> None:
    rate = RequestRate()
    rate.update([state(1, requests=1000.0)], 10.0)
    rate.update([None, state(2, requests=4.0)], 12.0)
    assert rate.per_second == 2.0
    rate.update([state(2, requests=0.0)], 14.0)
    assert rate.per_second == 0.0
