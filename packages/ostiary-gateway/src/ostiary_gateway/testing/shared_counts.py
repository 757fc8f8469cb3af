"""The conformance suite for shared counts (`ostiary_gateway.interfaces.shared_counts`):

    class TestMyCounts(SharedCountsContract):
        @pytest.fixture
        async def counts(self, clock): ...

        @pytest.fixture
        async def other(self, counts, clock): ...        # a second instance over the same counts, as in another process

Requires pytest and pytest-asyncio. The clock of the counts must be the fixture `clock`, or follow it.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from ostiary.testing import FakeClock
from ostiary_gateway.interfaces.shared_counts import NARROW, WIDE, CountsFull, SharedCounts, State

ODD_KEYS = ("", " ", "a/b", "a", "A", "\u00e9", "e\u0301", "x" * 10_000, "\ud800", "a\0b")


def add_one(state: State, now: float) -> tuple[State, float, float]:
    """Increment a count that expires after a minute."""
    count = (state[0] if state else 0.0) + 1
    return (count, now), 60.0, count


def read(state: State, now: float) -> tuple[State, float, State]:
    return state, 60.0 if state else 0.0, state


def forget(state: State, now: float) -> tuple[State, float, None]:
    return (), 0.0, None


@pytest.mark.asyncio
class SharedCountsContract:
    """Inherit from this class and provide the fixtures `counts` and `other`, which share their counts."""

    flood: ClassVar[int] = 20_000
    """A number of keys that exceeds what the counts store."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def both(self, counts: SharedCounts, other: SharedCounts) -> list[SharedCounts]:
        return [counts, other]

    async def test_nothing_is_kept_at_first(self, counts: SharedCounts) -> None:
        assert await counts.update("k", read) == ()
        assert await counts.update("k", read, wide=True) == ()

    async def test_what_one_counts_the_other_sees(self, counts: SharedCounts, other: SharedCounts) -> None:
        assert await counts.update("k", add_one) == 1
        assert await other.update("k", add_one) == 2
        assert await counts.update("k", add_one) == 3

    async def test_no_count_is_lost_when_many_count_at_once(self, both: list[SharedCounts]) -> None:
        results = await asyncio.gather(*(each.update("k", add_one) for each in both * 50))
        assert sorted(results) == list(range(1, 101))

    @pytest.mark.parametrize("wide", [False, True])
    async def test_keys_do_not_disturb_each_other(self, counts: SharedCounts, wide: bool) -> None:
        for times in range(1, 4):
            for key in ODD_KEYS:
                assert await counts.update(key, add_one, wide=wide) == times

    async def test_a_state_is_forgotten_when_it_no_longer_matters(
        self, counts: SharedCounts, other: SharedCounts, clock: FakeClock
    ) -> None:
        await counts.update("k", add_one)
        clock.advance(59.9)
        assert await other.update("k", add_one) == 2
        clock.advance(60)
        assert await counts.update("k", add_one) == 1

    async def test_a_state_that_matters_no_more_is_gone_at_once(
        self, counts: SharedCounts, other: SharedCounts
    ) -> None:
        await counts.update("k", add_one)
        await other.update("k", forget)
        assert await counts.update("k", add_one) == 1

    async def test_looking_changes_nothing(self, counts: SharedCounts) -> None:
        await counts.update("k", add_one)
        for number in range(100):
            assert await counts.update(f"unknown {number}", read) == ()
        assert (await counts.update("k", read))[0] == 1

    @pytest.mark.parametrize(("wide", "width"), [(False, NARROW), (True, WIDE)])
    async def test_a_state_holds_its_numbers_exactly(
        self, counts: SharedCounts, other: SharedCounts, wide: bool, width: int
    ) -> None:
        numbers = (*(float(number) / 3 for number in range(width - 2)), float("-inf"), 2.0**53)
        await counts.update("k", lambda state, now: (numbers, 60.0, None), wide=wide)
        assert await other.update("k", read, wide=wide) == numbers
        with pytest.raises(ValueError):  # noqa: PT011  # the message is the implementation's own
            await counts.update("k", lambda state, now: ((0.0,) * (width + 1), 60.0, None), wide=wide)
        assert await other.update("k", read, wide=wide) == numbers

    async def test_a_change_that_fails_changes_nothing(self, counts: SharedCounts, other: SharedCounts) -> None:
        await counts.update("k", add_one)
        with pytest.raises(ZeroDivisionError):
            await counts.update("k", lambda state, now: (state, 1 / 0, None))
        assert await other.update("k", add_one) == 2

    async def test_a_flood_of_keys_leaves_the_latest(self, counts: SharedCounts) -> None:
        """Narrow states may be evicted, but the most recent ones must be present."""
        for number in range(self.flood):
            await counts.update(f"k{number}", add_one)
        assert await counts.update(f"k{self.flood - 1}", add_one) == 2

    async def test_a_flood_of_wide_states_makes_nobody_forgotten(self, counts: SharedCounts) -> None:
        await counts.update("mine", add_one, wide=True)
        refused = 0
        for number in range(self.flood):
            try:
                await counts.update(f"k{number}", add_one, wide=True)
            except CountsFull:
                refused += 1
        assert refused > 0
        assert await counts.update("mine", add_one, wide=True) == 2

    async def test_closing_twice_is_harmless(self, counts: SharedCounts, other: SharedCounts) -> None:
        await other.update("k", add_one)
        await counts.close()
        await counts.close()
