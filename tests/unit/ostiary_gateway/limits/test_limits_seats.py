"""Who is served, who waits, and in which order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import TooManyRequests
from ostiary.model import UserInfo
from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.limits.settings import LimitSettings
from ostiary_gateway.limits.user_usage import Leave, UserUsage
from ostiary_gateway.testing import FakeClock


def share(limits: Limits, name: str, *groups: str) -> UserUsage:
    return limits.share(UserInfo(name, groups=groups))


async def turns(rounds: int = 3) -> None:
    """Let everybody who can go on go on."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class Seats:
    """Seats by the names of users."""

    def __init__(self, count: int, clock: FakeClock, **options: Any) -> None:
        names = {"per_user": "concurrency_per_user", "wait_seconds": "queue_wait"}
        settings = {names.get(name, name): value for name, value in options.items()}
        settings.setdefault("concurrency_per_user", 0)
        self._limits = Limits(LimitSettings(concurrency=count, **settings), clock=clock)
        self.fair = self._limits.seats
        self._kept: dict[str, UserUsage] = {}

    def share(self, name: str) -> UserUsage:
        return self._kept.setdefault(name, share(self._limits, name))

    def try_enter(self, name: str = "jim") -> Leave | None:
        return self.fair.try_enter(self.share(name))

    async def wait(self, name: str) -> Leave:
        return await self.fair.wait(self.share(name))

    def expire(self) -> None:
        self.fair.expire()

    @property
    def in_flight(self) -> int:
        return self.fair.in_flight

    @property
    def queued(self) -> int:
        return self.fair.queued


def seats(clock: FakeClock, count: int = 1, **options: Any) -> Seats:
    return Seats(count, clock, **options)


def entered(ticket: Leave | None) -> Leave:
    assert ticket is not None
    return ticket


async def test_a_free_seat_is_had_at_once(clock: FakeClock) -> None:
    fair = seats(clock, 2)
    entered(fair.try_enter())
    entered(fair.try_enter())
    assert fair.try_enter() is None
    assert fair.in_flight == 2


async def test_whoever_waits_gets_the_seat_that_becomes_free(clock: FakeClock) -> None:
    fair = seats(clock)
    first = entered(fair.try_enter())
    waiting = asyncio.ensure_future(fair.wait("joe"))
    await turns()
    assert fair.queued == 1
    first()
    assert fair.try_enter() is None, "nobody overtakes those who wait"
    second = await waiting
    assert fair.in_flight == 1
    second()
    assert fair.in_flight == 0
    assert fair.queued == 0


async def test_who_gives_up_in_the_middle_of_a_queue_takes_nobody_along(clock: FakeClock) -> None:
    fair = seats(clock)
    ticket = entered(fair.try_enter())
    waiting = [asyncio.ensure_future(fair.wait("joe")) for _ in range(3)]
    await turns()
    waiting[1].cancel()
    await turns()
    assert fair.queued == 2
    ticket()
    (await waiting[0])()
    (await waiting[2])()
    assert (fair.in_flight, fair.queued) == (0, 0)


async def test_who_gives_up_in_the_moment_of_a_refusal_has_given_up(clock: FakeClock) -> None:
    fair = seats(clock, wait_seconds=1)
    entered(fair.try_enter())
    waiting = asyncio.ensure_future(fair.wait("joe"))
    await turns()
    clock.advance(2)
    fair.expire()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_queues_are_served_in_turn(clock: FakeClock) -> None:
    """2.12, S73."""
    fair = seats(clock)
    ticket = entered(fair.try_enter())
    order: list[str] = []

    async def one(user: str) -> None:
        mine = await fair.wait(user)
        order.append(user)
        await asyncio.sleep(0)
        mine()

    tasks = [asyncio.ensure_future(one("flood")) for _ in range(10)]
    await turns()
    tasks += [asyncio.ensure_future(one(user)) for user in ("jane", "joe", "jane")]
    await turns()
    ticket()
    await asyncio.gather(*tasks)
    assert order[:6] == ["flood", "jane", "joe", "flood", "jane", "flood"]


@given(
    st.integers(min_value=1, max_value=3),
    st.lists(st.sampled_from(["flood", "flood", "flood", "jane", "joe", "leave", "leave"]), max_size=60),
)
@settings(max_examples=100, deadline=None)
def test_while_somebody_waits_each_other_user_is_served_once_at_most(count: int, actions: list[str]) -> None:
    """2.12, S73: so with one user flooding, the wait of another is bounded by the number of users, not of requests."""

    async def play() -> None:
        fair = Seats(count, FakeClock(), queue_length=1000)
        held: deque[Leave] = deque()
        waiting: dict[asyncio.Task[Leave], str] = {}
        served_since: dict[str, list[str]] = {}
        for action in actions:
            if action != "leave":
                ticket = fair.try_enter(action)
                if ticket is not None:
                    held.append(ticket)
                    continue
                waiting[asyncio.ensure_future(fair.wait(action))] = action
                served_since.setdefault(action, [])
            elif held:
                held.popleft()()
            await turns()
            for task in [task for task in waiting if task.done()]:
                user = waiting.pop(task)
                held.append(task.result())
                for others in served_since.values():
                    others.append(user)
                del served_since[user]
                if user in waiting.values():
                    served_since[user] = []
            assert fair.in_flight == len(held) <= count
            assert all(len(set(others)) == len(others) for others in served_since.values()), served_since
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        while held:
            held.popleft()()
        assert (fair.in_flight, fair.queued, fair.fair._queues) == (0, 0, {})

    asyncio.run(play())


async def test_a_user_who_holds_their_share_waits_while_others_are_served(clock: FakeClock) -> None:
    """2.12, S73: one greedy user leaves seats to everybody else."""
    fair = seats(clock, 4, per_user=2)
    held = [entered(fair.try_enter("flood")) for _ in range(2)]
    assert fair.try_enter("flood") is None
    waiting = asyncio.ensure_future(fair.wait("flood"))
    await turns()
    for _ in range(10):
        entered(fair.try_enter("jane"))()
    assert not waiting.done()
    held.pop()()
    last = await waiting
    assert fair.in_flight == 2
    last()
    held.pop()()
    assert (fair.in_flight, fair.queued) == (0, 0)


async def test_a_seat_that_becomes_free_goes_to_somebody_who_may_have_it(clock: FakeClock) -> None:
    """2.12, S73."""
    fair = seats(clock, 3, per_user=2)
    flood = [entered(fair.try_enter("flood")) for _ in range(2)]
    jane = entered(fair.try_enter("jane"))
    first, second = (asyncio.ensure_future(fair.wait(name)) for name in ("flood", "joe"))
    await turns()
    jane()
    joe = await second
    assert not first.done(), "it holds its share"
    joe()
    assert not first.done(), "a seat is free, and not for this user"
    flood.pop()()
    (await first)()
    flood.pop()()
    assert fair.in_flight == 0


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["enter", "leave", "hang up"])), max_size=60),
)
@settings(max_examples=100, deadline=None)
def test_nobody_waits_for_a_free_seat_but_who_holds_their_share(
    count: int, per_user: int, actions: list[tuple[str, str]]
) -> None:
    """2.12, S73."""

    async def play() -> None:
        fair = Seats(count, FakeClock(), per_user=per_user, queue_length=1000)
        held: dict[str, list[Leave]] = {"a": [], "b": [], "c": []}
        waiting: dict[asyncio.Task[Leave], str] = {}
        for user, action in actions:
            if action == "enter":
                waiting[asyncio.ensure_future(fair.wait(user))] = user
            elif action == "leave" and held[user]:
                held[user].pop()()
            elif action == "hang up":
                for task in [task for task, name in waiting.items() if name == user][:1]:
                    task.cancel()
            await turns()
            for task in [task for task in waiting if task.done()]:
                name = waiting.pop(task)
                if not task.cancelled():
                    held[name].append(task.result())
            assert fair.in_flight == sum(map(len, held.values())) <= count
            assert all(len(mine) <= per_user for mine in held.values())
            if fair.in_flight < count:
                assert all(len(held[name]) == per_user for name in waiting.values())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(play())


async def test_nobody_waits_longer_than_allowed(clock: FakeClock) -> None:
    """S73, 2.12: then it is 429, with the time to wait."""
    fair = seats(clock, wait_seconds=5)
    ticket = entered(fair.try_enter())
    early = asyncio.ensure_future(fair.wait("joe"))
    await turns()
    clock.advance(3)
    late = asyncio.ensure_future(fair.wait("joe"))
    await turns()
    clock.advance(2)
    fair.expire()
    with pytest.raises(TooManyRequests) as caught:
        await early
    assert caught.value.retry_after > 0
    assert caught.value.code == "too-many-requests"
    assert not late.done()
    ticket()
    (await late)()
    assert fair.in_flight == 0


async def test_the_timer_sends_them_away_by_itself(clock: FakeClock) -> None:
    fair = seats(clock, wait_seconds=0)
    entered(fair.try_enter())
    with pytest.raises(TooManyRequests):
        await fair.wait("joe")
    assert fair.queued == 0


async def test_the_timer_goes_on_for_those_who_came_later_and_begins_again_for_the_next(clock: FakeClock) -> None:
    fair = seats(clock, wait_seconds=0.001)
    entered(fair.try_enter())
    early = asyncio.ensure_future(fair.wait("joe"))
    await turns()
    clock.advance(0.0005)
    late = asyncio.ensure_future(fair.wait("jane"))
    await turns()
    clock.advance(0.0006)
    with pytest.raises(TooManyRequests):
        await early
    assert not late.done()
    clock.advance(1)
    with pytest.raises(TooManyRequests):
        await late
    following = asyncio.ensure_future(fair.wait("joe"))
    await turns()
    clock.advance(1)
    with pytest.raises(TooManyRequests):
        await following


@pytest.mark.parametrize(
    ("options", "fits"), [({"queue_length": 2}, 2), ({"queued_in_all": 3}, 3), ({"queue_length": 0}, 0)]
)
async def test_queues_are_bounded(clock: FakeClock, options: dict[str, Any], fits: int) -> None:
    """T2."""
    fair = seats(clock, **options)
    entered(fair.try_enter())
    waiting = [asyncio.ensure_future(fair.wait("joe")) for _ in range(fits)]
    await turns()
    with pytest.raises(TooManyRequests):
        await fair.wait("joe")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert fair.queued == 0


async def test_whoever_hangs_up_while_waiting_takes_no_seat(clock: FakeClock) -> None:
    fair = seats(clock)
    ticket = entered(fair.try_enter())
    gone, stays = (asyncio.ensure_future(fair.wait(user)) for user in ("joe", "joe"))
    await turns()
    gone.cancel()
    ticket()
    (await stays)()
    assert fair.in_flight == 0


async def test_whoever_hangs_up_in_the_moment_of_their_turn_gives_it_back(clock: FakeClock) -> None:
    fair = seats(clock)
    ticket = entered(fair.try_enter())
    gone = asyncio.ensure_future(fair.wait("joe"))
    await turns()
    ticket()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert fair.in_flight == 0
    entered(fair.try_enter())
