"""The timestamps of audit events are exact, whatever the clocks do."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.audit.auditor import Timestamps
from ostiary_gateway.testing import FakeClock


def test_times_are_exact_to_the_microsecond(clock: FakeClock) -> None:
    """2.7."""
    timestamps = Timestamps(clock)
    for step, expected in [
        (0.000001, "00:00:00.000001"),
        (0.999998, "00:00:00.999999"),
        (0.000001, "00:00:01.000000"),
        (59.5, "00:01:00.500000"),
        (86400 * 31, "00:01:00.500000"),
    ]:
        clock.advance(step)
        assert timestamps.stamp(clock.monotonic())[11:] == f"{expected}Z"
    assert timestamps.stamp(1000.0) == "2026-01-01T00:00:00.000000Z"
    assert timestamps.stamp(clock.monotonic()).startswith("2026-02-01T")


@given(st.lists(st.integers(min_value=0, max_value=5_000_000), min_size=1, max_size=20))
@settings(max_examples=100)
def test_a_stamp_is_what_the_clock_says_whatever_the_steps(steps: list[int]) -> None:
    clock = FakeClock()
    timestamps = Timestamps(clock)
    for step in steps:
        clock.advance(step / 1_000_000)
        expected = clock.now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        assert timestamps.stamp(clock.monotonic()) == expected


def test_a_clock_that_was_put_right_is_followed_within_a_second() -> None:
    class Stepped(FakeClock):
        def step(self, seconds: float) -> None:
            self._monotonic -= seconds
            self.advance(seconds)

    clock = Stepped()
    timestamps = Timestamps(clock)
    timestamps.stamp(clock.monotonic())
    clock.step(3600)
    clock.advance(1)
    assert timestamps.stamp(clock.monotonic()) == "2026-01-01T01:00:01.000000Z"
