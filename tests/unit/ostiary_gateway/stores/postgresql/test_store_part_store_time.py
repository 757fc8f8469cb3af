"""Between this machine's clock and the database's: when the offset counts, and when it stays as it is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ostiary_gateway.stores.postgresql.store_part import SECOND, DatabaseTime
from ostiary_gateway.stores.stored_session import micros
from ostiary_gateway.testing import FakeClock


def answer(time: DatabaseTime, clock: FakeClock, ahead: float, *, took: float = 0.002) -> None:
    """An answer of a database whose clock is so many seconds ahead, noted in the middle of the round trip."""
    sent = time.machine
    clock.advance(took / 2)
    told = micros(clock.now()) + round(ahead * SECOND)
    clock.advance(took / 2)
    time.note(told, told, sent=sent)


@pytest.mark.parametrize("ahead", [0.0, 0.9, -0.9])
def test_clocks_that_agree_within_a_second_are_the_same(clock: FakeClock, ahead: float) -> None:
    time = DatabaseTime(clock)
    answer(time, clock, ahead)
    assert time.moment(time.to_database(clock.now())) == clock.now()
    assert time.to_database(clock.now()) == micros(clock.now())
    assert time.changes == 0


@pytest.mark.parametrize("ahead", [3600.0, -3600.0, 1.1])
def test_a_clock_that_is_ahead_or_behind_is_made_up_for(clock: FakeClock, ahead: float) -> None:
    time = DatabaseTime(clock)
    answer(time, clock, ahead)
    assert abs(time.to_database(clock.now()) - micros(clock.now()) - ahead * SECOND) < 0.01 * SECOND
    assert time.moment(time.to_database(clock.now())) == clock.now()
    assert time.changes == 1


def test_times_do_not_jitter_with_the_delay_of_answers(clock: FakeClock) -> None:
    time = DatabaseTime(clock)
    answer(time, clock, 60)
    before = time.to_database(clock.now()) - micros(clock.now())
    for took in (0.001, 0.9, 0.05, 3.0, 0.4):
        answer(time, clock, 60, took=took)
        answer(time, clock, 60.3, took=took)
    assert time.to_database(clock.now()) - micros(clock.now()) == before
    assert time.changes == 1


def test_an_answer_that_took_long_says_nothing_that_was_not_known(clock: FakeClock) -> None:
    time = DatabaseTime(clock)
    answer(time, clock, 2, took=30)
    assert time.changes == 0


def test_a_machine_whose_clock_is_set_back_is_noticed(clock: FakeClock) -> None:
    time = DatabaseTime(clock)
    answer(time, clock, 0)
    clock.set_back(hours=1)
    answer(time, clock, 3600)
    assert time.changes == 1
    assert abs(time.to_database(clock.now()) - micros(clock.now() + timedelta(hours=1))) < 0.01 * SECOND


def test_a_clock_that_is_set_back_between_question_and_answer_decides_nothing(clock: FakeClock) -> None:
    time = DatabaseTime(clock)
    sent = time.machine
    clock.set_back(10)
    time.note(sent, sent, sent=sent)
    assert time.changes == 0


def test_a_clock_that_replaces_the_databases_is_believed(clock: FakeClock) -> None:
    time = DatabaseTime(clock, FakeClock())
    time.note(0, 5, sent=time.machine)
    assert (time.changes, time.seen, time.override) == (0, 5, micros(clock.now()))
