"""When the proxy ends by itself."""

from __future__ import annotations

from ostiary_gateway.local_proxy.process import IdleTime
from ostiary_gateway.testing import FakeClock

LIMIT = 900.0


def test_it_ends_the_second_at_which_nobody_has_used_it_for_so_long(clock: FakeClock) -> None:
    idle = IdleTime(clock)
    clock.advance(899)
    assert not idle.is_over(LIMIT, busy=False)
    clock.advance(1)
    assert idle.is_over(LIMIT, busy=False)


def test_a_connection_keeps_it_and_its_end_begins_the_time(clock: FakeClock) -> None:
    idle = IdleTime(clock)
    clock.advance(hours=10)
    assert not idle.is_over(LIMIT, busy=True)
    clock.advance(899)
    assert not idle.is_over(LIMIT, busy=False)
    idle.touch()
    assert idle.seconds_left(LIMIT) == LIMIT
