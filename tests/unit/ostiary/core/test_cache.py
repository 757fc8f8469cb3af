"""The cache: bounded, expiring, filled once, and never with an error."""

from __future__ import annotations

import asyncio
import gc
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.cache import Cache, size_of
from ostiary.errors import ProviderError
from ostiary_gateway.testing import FakeClock
from tests.support.bounded import bytes_of_owner


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Source:
    """Counts how often it is asked, and answers when it is told to."""

    def __init__(self, answer: str = "yes") -> None:
        self.asked = 0
        self.answer: str | Exception = answer
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self) -> str:
        self.asked += 1
        await self.open.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def is_of(owner: str, key: tuple[str, int], value: int) -> bool:
    return key[0] == owner


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- expiry and bounds ---


def test_a_value_is_gone_the_moment_its_time_is_over(clock: FakeClock) -> None:
    cache: Cache[str, int] = Cache(seconds=10, clock=clock)
    cache.put("a", 1)
    cache.put("b", 2, seconds=5)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, 2, None)
    clock.advance(5)
    assert (cache.get("a"), cache.get("b")) == (1, None)
    clock.advance(5)
    assert cache.get("a") is None
    assert len(cache) == 0
    assert not cache.put("a", 1, seconds=0)


def test_the_oldest_makes_room(clock: FakeClock) -> None:
    """T2."""
    cache: Cache[int, int] = Cache(seconds=10, clock=clock, entries=3)
    for number in range(5):
        cache.put(number, number)
    assert [cache.get(number) for number in range(5)] == [None, None, 2, 3, 4]


def test_one_owner_cannot_flush_what_others_have(clock: FakeClock) -> None:
    """T2."""
    cache: Cache[tuple[str, int], int] = Cache(seconds=10, clock=clock, entries=100, share=10)
    for user in ("ann", "bob"):
        cache.put((user, 0), 0, owner=user)
    for number in range(1000):
        cache.put(("mallory", number), number, owner="mallory")
    assert len(cache) == 12
    assert cache.get(("ann", 0)) == cache.get(("bob", 0)) == 0
    assert [cache.get(("mallory", number)) for number in (989, 990, 999)] == [None, 990, 999]


def test_bytes_are_bounded_for_each_owner_and_in_all(clock: FakeClock) -> None:
    """T2: also where the keys are small and the values are not."""
    cache: Cache[int, str] = Cache(seconds=10, clock=clock, size=100_000, share_size=20_000, value_size=len)
    for owner in range(20):
        for number in range(20):
            cache.put(owner * 100 + number, "x" * 5000, owner=owner)
            assert cache._entries.held <= 100_000
            assert bytes_of_owner(cache._entries, owner) <= 20_000
    assert not cache.put(1, "x" * 20_000, owner="mallory")


def test_a_huge_key_is_not_kept(clock: FakeClock) -> None:
    """T2."""
    cache: Cache[tuple[str, ...], int] = Cache(seconds=10, clock=clock, key_bytes=100)
    assert not cache.put(("x" * 101,), 1)
    assert not cache.put(("x",) * 60, 1)
    assert cache.put(("x" * 90,), 1)
    assert len(cache) == 1
    measured: Cache[int, int] = Cache(seconds=10, clock=clock, key_bytes=100, key_size=lambda key: key)
    assert not measured.put(101, 1)


def test_keys_are_measured_with_their_parts() -> None:
    assert size_of("four") == size_of(b"four") == 4
    assert size_of((("a", "bc"), frozenset({"d"}), None, 7)) > 20


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sampled_from(["put", "get", "drop", "tick"])),
        max_size=60,
    )
)
@settings(max_examples=100)
def test_bounds_hold_and_only_what_was_put_last_is_got(steps: list[tuple[str, int, str]]) -> None:
    """T1, T2."""
    clock = FakeClock()
    cache: Cache[tuple[str, int], int] = Cache(seconds=3, clock=clock, entries=8, share=4)
    last: dict[tuple[str, int], int] = {}
    for time, (owner, number, step) in enumerate(steps):
        key = (owner, number)
        if step == "put":
            cache.put(key, time, owner=owner)
            last[key] = time
        elif step == "get":
            assert cache.get(key) in (None, last.get(key))
        elif step == "drop":
            cache.drop(partial(is_of, owner))
            last = {key: value for key, value in last.items() if key[0] != owner}
        else:
            clock.advance(1)
        assert len(cache) <= 8
        assert all(len(owned) <= 4 for owned in cache._entries._owned.values())
        assert sum(map(len, cache._entries._owned.values())) == len(cache)


# --- one fills it, the others wait ---


async def test_equal_questions_at_the_same_time_are_asked_once(clock: FakeClock) -> None:
    cache: Cache[str, str] = Cache(seconds=10, clock=clock)
    source, other = Source(), Source("other")
    answers = await asyncio.gather(*(cache.fill("a", source) for _ in range(50)), cache.fill("b", other))
    assert answers == ["yes"] * 50 + ["other"]
    assert (source.asked, other.asked) == (1, 1)
    assert await cache.fill("a", source) == cache.get("a") == "yes"
    assert source.asked == 1


async def test_an_answer_is_as_old_as_its_question(clock: FakeClock) -> None:
    cache: Cache[str, str] = Cache(seconds=10, clock=clock)
    source = Source()
    source.open.clear()
    waiting = asyncio.ensure_future(cache.fill("a", source))
    await turns()
    clock.advance(6)
    source.open.set()
    await waiting
    assert cache.get("a") == "yes"
    clock.advance(4)
    assert cache.get("a") is None


async def test_an_error_reaches_everyone_who_waits_and_is_not_kept(clock: FakeClock) -> None:
    """T5."""
    cache: Cache[str, str] = Cache(seconds=10, clock=clock)
    source = Source()
    source.answer = ProviderError("cannot ask")
    errors = await asyncio.gather(*(cache.fill("a", source) for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in errors] == [str(source.answer)] * 3
    assert len({id(error) for error in errors}) == 3
    assert len(cache) == 0
    source.answer = "yes"
    assert await cache.fill("a", source) == "yes"
    assert source.asked == 2


@pytest.mark.parametrize("who", [0, 1])
async def test_a_caller_that_is_cancelled_takes_nobody_with_it(clock: FakeClock, who: int) -> None:
    """T5: neither the one who asked first nor one who joined."""
    cache: Cache[str, str] = Cache(seconds=10, clock=clock)
    source = Source()
    source.open.clear()
    callers = [asyncio.ensure_future(cache.fill("a", source)) for _ in range(3)]
    await turns()
    callers[who].cancel()
    await turns()
    assert callers[who].cancelled()
    source.open.set()
    left = [caller for caller in callers if caller is not callers[who]]
    assert await asyncio.gather(*left) == ["yes", "yes"]
    assert source.asked == 1


async def test_an_answer_that_nobody_waits_for_any_more_is_still_kept(clock: FakeClock) -> None:
    """T5."""
    cache: Cache[str, str] = Cache(seconds=10, clock=clock)
    source = Source()
    source.open.clear()
    caller = asyncio.ensure_future(cache.fill("a", source))
    await turns()
    caller.cancel()
    source.open.set()
    await turns()
    assert cache.get("a") == "yes"


async def test_an_error_that_nobody_waits_for_any_more_is_no_news(clock: FakeClock) -> None:
    said: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
    cache: Cache[str, str] = Cache(seconds=10, clock=clock)
    source = Source()
    source.answer = ValueError("x")
    source.open.clear()
    caller = asyncio.ensure_future(cache.fill("a", source))
    await turns()
    caller.cancel()
    source.open.set()
    await turns()
    del caller
    gc.collect()
    assert said == []


async def test_a_question_that_is_never_answered_is_given_up(clock: FakeClock) -> None:
    """T5."""
    cache: Cache[str, str] = Cache(seconds=10, clock=clock, time_limit=0.01)
    source = Source()
    source.open.clear()
    with pytest.raises(TimeoutError):
        await cache.fill("a", source)
    assert len(cache) == 0


async def test_a_producer_that_is_cancelled_from_within_is_an_error_and_not_a_cancellation(clock: FakeClock) -> None:
    """T5."""
    cache: Cache[str, str] = Cache(seconds=10, clock=clock)

    async def cancelled() -> str:
        raise asyncio.CancelledError

    with pytest.raises(ProviderError):
        await cache.fill("a", cancelled)


async def test_dropping_beats_an_answer_that_is_under_way(clock: FakeClock) -> None:
    """T3: it may have been given by what has just changed. Who asks afterwards is answered by the new."""
    cache: Cache[str, str] = Cache(seconds=10, clock=clock)
    old, new = Source("old"), Source("new")
    old.open.clear()
    before = asyncio.ensure_future(cache.fill("a", old))
    await turns()
    cache.drop()
    after = asyncio.ensure_future(cache.fill("a", new))
    assert await asyncio.wait_for(after, 30) == "new"
    old.open.set()
    assert await before == "old"
    assert cache.get("a") == "new"


async def test_dropping_some_leaves_the_others(clock: FakeClock) -> None:
    cache: Cache[str, int] = Cache(seconds=10, clock=clock)
    for number, key in enumerate("abc"):
        cache.put(key, number, owner=key)
    assert cache.drop(lambda key, value: value == 1) == 1
    assert [cache.get(key) for key in "abc"] == [0, None, 2]
    assert cache.drop() == 2
    assert len(cache) == 0
