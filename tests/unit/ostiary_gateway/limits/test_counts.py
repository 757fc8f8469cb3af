"""The counts of the processes of one machine, and the guard of an output that they share."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ostiary_gateway.interfaces.shared_counts import NARROW, WIDE, Change, CountsFull, State
from ostiary_gateway.limits.counts import WIDE_SLOTS, MachineCounts, MemoryCounts
from ostiary_gateway.testing import FakeClock


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = MachineCounts.create()
    yield descriptor
    os.close(descriptor)


def add(state: State, now: float) -> tuple[State, float, float]:
    total = (state[0] if state else 0.0) + 1
    return (total,), 60.0, total


async def test_a_count_that_may_wait_is_that_of_all_others(memory: int) -> None:
    counts, another = MachineCounts(memory), MachineCounts(memory)
    assert [await counts.update("k", add), another.update_now("k", add)] == [1, 2]
    assert [await counts.update("k", add, wide=True), another.update_now("k", add, wide=True)] == [1, 2]
    for each in (counts, another):
        await each.close()


async def test_only_a_wide_count_has_many_numbers(memory: int) -> None:
    async def count(numbers: int, *, wide: bool) -> None:
        await counts.update("k", lambda state, now: ((1.0,) * numbers, 60.0, None), wide=wide)

    counts = MachineCounts(memory)
    for wide, most in ((False, NARROW), (True, WIDE)):
        await count(most, wide=wide)
        with pytest.raises(ValueError, match="more numbers than fit"):
            await count(most + 1, wide=wide)
    await counts.close()


@pytest.mark.parametrize("kind", ["one process", "many processes"])
async def test_wide_counts_that_have_no_room_are_refused_and_none_is_lost(memory: int, kind: str) -> None:
    clock = FakeClock()
    is_one = kind == "one process"
    counts = MemoryCounts(clock=clock, wide_limit=100) if is_one else MachineCounts(memory, clock=clock)
    kept = ["0"]
    counts.update_now("0", add, wide=True)
    clock.advance(1.0)
    with suppress(CountsFull):
        for key in map(str, range(1, WIDE_SLOTS + 1)):
            assert counts.update_now(key, add, wide=True) == 1
            kept.append(key)
    assert len(kept) == 100 if is_one else 100 < len(kept) <= WIDE_SLOTS
    clock.advance(58.0)
    for key in kept[1:]:
        assert counts.update_now(key, add, wide=True) == 2
    for _ in range(2):
        with pytest.raises(CountsFull):
            counts.update_now(str(len(kept)), add, wide=True)
    # The first one has ended by now, and all others at the end.
    clock.advance(1.0)
    if is_one:
        assert counts.update_now("another", add, wide=True) == 1
        with pytest.raises(CountsFull):
            counts.update_now("one more", add, wide=True)
    assert counts.update_now(kept[1], add, wide=True) == 3
    clock.advance(60.0)
    assert [counts.update_now(key, add, wide=True) for key in (*kept, str(len(kept)))[-5:]] == [1] * 5
    await counts.close()


async def test_many_counts_do_not_mix(memory: int) -> None:
    def numbers(number: int, *, wide: bool) -> State:
        return tuple(float(number * 1000 + place) for place in range(WIDE if wide else NARROW))

    def keep(new: State) -> Change[None]:
        return lambda state, now: (new, 60.0, None)

    counts, seen = MachineCounts(memory), MachineCounts(memory)
    guard = counts.line_guard()
    guard.note(torn=True)
    each = [(number, wide) for number in range(500) for wide in (False, True)]
    for number, wide in each:
        counts.update_now(f"{number}", keep(numbers(number, wide=wide)), wide=wide)
    for number, wide in each:
        state = seen.update_now(f"{number}", lambda state, now: (state, 60.0, state), wide=wide)
        assert state == numbers(number, wide=wide)
    assert guard.torn
    for one in (counts, seen):
        await one.close()


async def test_an_incomplete_line_is_told_to_whoever_enters_next(memory: int) -> None:
    counts, another = MachineCounts(memory), MachineCounts(memory)
    guard, next_guard = counts.line_guard(), another.line_guard()
    told = [next_guard.torn]
    for writer, torn in ((guard, True), (next_guard, False)):
        writer.note(torn=torn)
        told += [guard.torn, next_guard.torn]
    assert told == [False, True, True, False, False]
    for each in (counts, another):
        await each.close()


def can_enter_elsewhere(memory: int) -> bool:
    """Whether another process may write to the output."""

    def enter() -> None:
        os._exit(0 if MachineCounts(memory).line_guard().try_enter() else 1)

    process = multiprocessing.get_context("fork").Process(target=enter)
    process.start()
    process.join()
    return process.exitcode == 0


async def test_one_process_at_a_time_is_inside_until_it_leaves(memory: int) -> None:
    counts = MachineCounts(memory)
    guard = counts.line_guard()
    assert can_enter_elsewhere(memory)
    for _ in range(2):
        # Entering again is nothing new.
        assert guard.try_enter()
        assert guard.try_enter()
        assert not can_enter_elsewhere(memory)
        guard.leave()
        assert can_enter_elsewhere(memory)
    await counts.close()
