"""A bucket that a machine reconciles with the bucket of all replicas."""

from __future__ import annotations

import pytest

from ostiary_gateway.limits.rates import LATEST_CHARGE_SECONDS, Buckets

NOW = 5000.0
BUCKETS = Buckets(2.0, 10.0)
# What the bucket of all replicas holds beyond a burst.
SLACK = 2.0 * LATEST_CHARGE_SECONDS


def test_what_all_replicas_took_is_charged_below_zero() -> None:
    state, seconds = BUCKETS.charge((), NOW, {0: 8.0})
    assert state == (10 + SLACK - 8, NOW)
    state, seconds = BUCKETS.charge(state, NOW, {0: 9.0})
    assert state == (10 + SLACK - 17, NOW)
    assert seconds == 17 / 2.0, "then it is full again, and as good as none"


def test_the_bucket_of_all_replicas_fills_with_time() -> None:
    assert BUCKETS.charge((-5.0, NOW), NOW + 3, {}) == ((1.0, NOW + 3), (10 + SLACK - 1) / 2.0)
    assert BUCKETS.charge((-5.0, NOW), NOW + 3000, {}) == ((10 + SLACK, NOW + 3000), 0.0)


def test_nothing_is_taken_when_the_clock_of_the_store_is_set_back() -> None:
    assert BUCKETS.charge((4.0, NOW), NOW - 60, {})[0] == (4.0, NOW - 60)


@pytest.mark.parametrize("amount", [12.0, 1_000_000.0])
def test_one_charge_is_a_burst_and_a_second_at_most(amount: float) -> None:
    assert BUCKETS.charge((), NOW, {0: amount})[0] == (0.0, NOW)


def test_a_machine_adopts_what_others_have_taken() -> None:
    state, seconds = BUCKETS.adopt((9.0, NOW), NOW, shared=(3.0, NOW), unsettled={})
    assert (state, seconds) == ((3.0, NOW), 7 / 2.0)
    assert BUCKETS.adopt((), NOW, shared=(-3.0, NOW - 1), unsettled={})[0] == (-1.0, NOW)


def test_what_was_taken_while_the_store_was_asked_is_taken_from_its_answer() -> None:
    assert BUCKETS.adopt((9.0, NOW), NOW, shared=(6.0, NOW), unsettled={0: 4.0})[0] == (2.0, NOW)


def test_what_another_worker_of_the_machine_took_stays_taken() -> None:
    """It has not told the store yet, so the store's answer does not contain it."""
    assert BUCKETS.adopt((1.0, NOW), NOW, shared=(6.0, NOW), unsettled={})[0] == (1.0, NOW)


async def test_an_exact_bucket_gives_what_it_has() -> None:
    buckets = Buckets(0.001, 3.0)
    assert [await buckets.take_exactly("alice") for _ in range(3)] == [0.0] * 3
    assert await buckets.take_exactly("alice") > 0
    assert await buckets.take_exactly("bob") == 0.0
