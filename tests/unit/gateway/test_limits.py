"""No caller uses up what all share, and no table grows with what callers invent."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import TooManyRequests
from ostiary.gateway.limits import Buckets, FailedAttempts, FairSeats, Leave, Limits, LimitSettings, StreamLimit
from ostiary.model import UserInfo
from ostiary.testing import FakeClock


async def turns(rounds: int = 3) -> None:
    """Let everybody who can go on go on."""
    for _ in range(rounds):
        await asyncio.sleep(0)


# --- rate ---


def test_a_user_may_send_a_burst_and_then_so_many_a_second(clock: FakeClock) -> None:
    """S73."""
    buckets = Buckets(2, 3, clock=clock)
    assert [buckets.take("jane") for _ in range(3)] == [0, 0, 0]
    assert buckets.take("jane") == pytest.approx(0.5)
    clock.advance(0.5)
    assert buckets.take("jane") == 0
    assert buckets.take("jane") == pytest.approx(0.5)


def test_a_pause_gives_no_more_than_the_burst(clock: FakeClock) -> None:
    buckets = Buckets(2, 3, clock=clock)
    buckets.take("jane")
    clock.advance(hours=1)
    assert [buckets.take("jane") == 0 for _ in range(5)] == [True, True, True, False, False]


def test_users_do_not_use_up_each_others_rate(clock: FakeClock) -> None:
    """S73."""
    buckets = Buckets(1, 1, clock=clock)
    assert buckets.take("jane") == 0
    assert buckets.take("joe") == 0
    assert buckets.take("jane") > 0


@given(st.lists(st.floats(min_value=0, max_value=2), max_size=60))
@settings(max_examples=100)
def test_no_span_has_more_requests_than_the_burst_and_the_rate_allow(pauses: list[float]) -> None:
    """S73."""
    clock = FakeClock()
    buckets = Buckets(3, 5, clock=clock)
    passed: list[float] = []
    for pause in pauses:
        clock.advance(pause)
        if not buckets.take("jane"):
            passed.append(clock.monotonic())
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= 5 + 3 * (passed[last] - passed[first]) + 0.001


def test_the_table_of_rates_is_bounded_and_forgets_the_idle_first(clock: FakeClock) -> None:
    """T2."""
    buckets = Buckets(1, 2, clock=clock, limit=100)
    for number in range(50):
        buckets.take(f"idle{number}")
    clock.advance(5)
    buckets.take("busy")
    buckets.take("busy")
    for number in range(50):
        buckets.take(f"new{number}")
    assert len(buckets) <= 100
    assert buckets.take("busy") > 0, "its bucket is empty, so it is not forgotten"
    for number in range(10_000):
        buckets.take(str(number))
    assert len(buckets) <= 100


# --- failed attempts ---


def test_an_address_with_many_failures_must_wait(clock: FakeClock) -> None:
    """S73."""
    failures = FailedAttempts(3, clock=clock)
    for _ in range(3):
        assert failures.blocked_for("192.0.2.1") == 0
        failures.failed("192.0.2.1")
    assert failures.blocked_for("192.0.2.1") == pytest.approx(20)
    assert failures.blocked_for("192.0.2.2") == 0
    with pytest.raises(TooManyRequests) as caught:
        failures.check("192.0.2.1")
    assert caught.value.retry_after == pytest.approx(20)
    clock.advance(20)
    assert failures.blocked_for("192.0.2.1") == 0
    failures.check("192.0.2.1")


def test_a_subscribers_ipv6_addresses_count_as_one(clock: FakeClock) -> None:
    """T2."""
    failures = FailedAttempts(1, clock=clock)
    failures.failed("2001:db8:1:2:3::4")
    assert failures.blocked_for("2001:db8:1:2:ffff::") > 0
    assert failures.blocked_for("2001:db8:1:3::") == 0
    failures.failed("::ffff:192.0.2.1")
    assert failures.blocked_for("192.0.2.1") > 0
    failures.failed("no:address")
    assert failures.blocked_for("no:address") > 0


def test_the_table_of_failures_is_bounded(clock: FakeClock) -> None:
    """T2."""
    failures = FailedAttempts(10, clock=clock, limit=50)
    for number in range(1000):
        failures.failed(f"192.0.{number // 256}.{number % 256}")
    assert len(failures) <= 50


def test_failures_need_not_be_limited(clock: FakeClock) -> None:
    failures = FailedAttempts(0, clock=clock)
    failures.failed("192.0.2.1")
    assert failures.blocked_for("192.0.2.1") == 0


# --- streams ---


def test_a_user_may_hold_only_so_many_streams_open() -> None:
    """S73, 2.11."""
    streams = StreamLimit(2)
    first, _ = streams.open("jane"), streams.open("jane")
    with pytest.raises(TooManyRequests):
        streams.open("jane")
    streams.open("joe")()
    first()
    assert streams.open_in_all == 1
    streams.open("jane")()
    assert streams.open_in_all == 1


def test_streams_that_are_closed_leave_no_trace() -> None:
    """T2."""
    streams = StreamLimit(2)
    for number in range(100):
        streams.open(str(number))()
    streams.open(None)()
    assert streams._open == {}
    assert streams.open_in_all == 0


# --- seats ---


def seats(clock: FakeClock, count: int = 1, **options: Any) -> FairSeats:
    return FairSeats(count, clock=clock, **options)


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
        fair = FairSeats(count, queue_length=1000, clock=FakeClock())
        held: deque[Leave] = deque()
        waiting: dict[asyncio.Task[Leave], str] = {}
        served_since: dict[str, list[str]] = {}
        for action in actions:
            if action != "leave":
                ticket = fair.try_enter()
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
        assert (fair.in_flight, fair.queued, fair._queues) == (0, 0, {})

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


# --- all together ---


async def test_a_request_enters_leaves_and_is_counted(clock: FakeClock) -> None:
    limits = Limits(LimitSettings(requests_per_second=1, burst=2, concurrency=1), clock=clock)
    first = entered(limits.try_enter("jane"))
    assert limits.try_enter("jane") is None
    waiting = asyncio.ensure_future(limits.wait("jane"))
    await turns()
    first()
    (await waiting)()
    with pytest.raises(TooManyRequests) as caught:
        limits.try_enter("jane")
    assert caught.value.retry_after == pytest.approx(1)
    with pytest.raises(TooManyRequests):
        limits.open_stream("jane")


async def test_those_who_are_exempt_are_never_held_up(clock: FakeClock) -> None:
    """2.12."""
    settings = LimitSettings(
        requests_per_second=0.001, burst=1, concurrency=1, streams=1, exempt_users=frozenset({"probe"})
    )
    limits = Limits(settings, clock=clock)
    assert limits.key(UserInfo("probe")) is None
    assert limits.key(UserInfo("root", groups=("system:masters",))) is None
    assert limits.key(UserInfo("jane", groups=("dev",))) == "jane"
    for _ in range(10):
        entered(limits.try_enter(None))
        limits.open_stream(None)
    assert limits.seats.in_flight == 0
    entered(limits.try_enter("jane"))


async def test_a_stream_takes_no_seat(clock: FakeClock) -> None:
    """2.11."""
    limits = Limits(LimitSettings(concurrency=1), clock=clock)
    stream = limits.open_stream("jane")
    entered(limits.try_enter("jane"))()
    assert limits.streams.open_in_all == 1
    stream()
    assert limits.streams.open_in_all == 0


async def test_without_a_limit_nobody_waits(clock: FakeClock) -> None:
    limits = Limits(LimitSettings(concurrency=0, streams=0), clock=clock)
    for _ in range(1000):
        entered(limits.try_enter("jane"))
        limits.open_stream("jane")
