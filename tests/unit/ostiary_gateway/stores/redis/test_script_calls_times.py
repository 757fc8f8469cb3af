"""Two clocks and how far they are apart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ostiary_gateway.stores.redis.script_calls import Times, nearest_moment
from ostiary_gateway.stores.stored_session import micros
from ostiary_gateway.testing import FakeClock

SECOND = 1_000_000


def measure(times: Times, clock: FakeClock, ahead: float, *, took: float = 0.0) -> bool:
    now = micros(clock.now())
    return times.measure(now + int(ahead * SECOND), now - int(took * SECOND / 2), now + int(took * SECOND / 2))


def test_clocks_that_agree_within_a_second_are_one_clock() -> None:
    clock = FakeClock()
    times = Times(clock, given=False)
    assert not measure(times, clock, 0.9)
    assert not measure(times, clock, -1.0)
    assert times.to_server(clock.now()) == micros(clock.now())


def test_a_difference_is_applied_both_ways() -> None:
    clock = FakeClock()
    times = Times(clock, given=False)
    assert measure(times, clock, 3600)
    assert times.to_server(clock.now()) == micros(clock.now()) + 3600 * SECOND
    assert times.from_store(times.to_server(clock.now()) + 7, 7) == clock.now()


def test_a_difference_in_use_changes_only_when_it_is_wrong_by_more_than_half_a_second() -> None:
    clock = FakeClock()
    times = Times(clock, given=False)
    measure(times, clock, 10)
    assert not measure(times, clock, 10.5)
    assert times.ahead == 10 * SECOND
    assert measure(times, clock, 10.6)
    assert measure(times, clock, 0.2)
    assert times.ahead == 0


def test_a_slow_answer_tells_nothing_of_the_clock() -> None:
    clock = FakeClock()
    times = Times(clock, given=False)
    assert not measure(times, clock, 3600, took=0.6)
    assert measure(times, clock, 3600, took=0.4)


def test_a_time_that_is_given_to_the_server_needs_no_difference() -> None:
    clock = FakeClock()
    times = Times(clock, given=True)
    assert times.argument == str(micros(clock.now()))
    assert not measure(times, clock, 3600)
    assert Times(clock, given=False).argument == ""


def test_times_that_no_calendar_has_are_the_first_and_the_last_that_it_has() -> None:
    assert nearest_moment(10**18) == datetime.max.replace(tzinfo=UTC)
    assert nearest_moment(-(10**18)) == datetime.min.replace(tzinfo=UTC)
    assert nearest_moment(micros(datetime.max.replace(tzinfo=UTC)) - 1) == datetime.max.replace(tzinfo=UTC) - timedelta(
        microseconds=1
    )
