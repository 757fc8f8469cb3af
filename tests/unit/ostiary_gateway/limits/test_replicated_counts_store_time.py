"""The time of the store: right as far as that can be known, and without jumps from slow exchanges."""

from __future__ import annotations

import pytest

from ostiary_gateway.limits.replicated_counts import StoreTime
from ostiary_gateway.testing import FakeClock


def test_before_the_store_is_asked_it_is_the_time_of_day() -> None:
    clock = FakeClock()
    time = StoreTime(clock)
    clock.advance(5)
    assert time.now() == clock.now().timestamp()


def test_it_goes_on_when_the_time_of_day_of_the_machine_is_set_back() -> None:
    clock = FakeClock()
    time = StoreTime(clock)
    before = time.now()
    clock.set_back(3600)
    assert time.now() == before


@pytest.mark.parametrize("seconds", [-100.0, 100.0])
def test_the_time_that_the_store_tells_is_taken(seconds: float) -> None:
    clock = FakeClock()
    time = StoreTime(clock)
    told, asked_at = time.now() + seconds, clock.monotonic()
    time.correct(told, earliest=asked_at, latest=asked_at)
    clock.advance(1)
    assert time.now() == pytest.approx(told + 1)


def test_a_slow_exchange_moves_it_only_if_it_was_wrong() -> None:
    clock = FakeClock()
    time = StoreTime(clock)
    asked_at, at_first = clock.monotonic(), time.now()
    clock.advance(2)
    time.correct(at_first + 1.5, earliest=asked_at, latest=clock.monotonic())
    assert time.now() == pytest.approx(at_first + 2)
    time.correct(at_first + 2.5, earliest=asked_at, latest=clock.monotonic())
    assert time.now() == pytest.approx(at_first + 2.5), "it cannot have been earlier than when the store was told"
