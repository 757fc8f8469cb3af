"""No caller uses up what all share, and no table grows with what callers invent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import TooManyRequests
from ostiary.model import UserInfo
from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.limits.rates import Buckets, FailedAttempts
from ostiary_gateway.limits.settings import LimitSettings
from ostiary_gateway.limits.user_usage import Leave, UserUsage
from ostiary_gateway.testing import FakeClock


def share(limits: Limits, name: str, *groups: str) -> UserUsage:
    return limits.share(UserInfo(name, groups=groups))


async def turns(rounds: int = 3) -> None:
    """Let everybody who can go on go on."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def entered(ticket: Leave | None) -> Leave:
    assert ticket is not None
    return ticket


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
        assert failures.seconds_blocked("192.0.2.1") == 0
        failures.charge("192.0.2.1")
    assert failures.seconds_blocked("192.0.2.1") == pytest.approx(20)
    assert failures.seconds_blocked("192.0.2.2") == 0
    with pytest.raises(TooManyRequests) as caught:
        failures.charge("192.0.2.1")
    assert caught.value.retry_after == pytest.approx(20)
    clock.advance(20)
    assert failures.seconds_blocked("192.0.2.1") == 0
    failures.charge("192.0.2.1")


def test_a_credential_that_fails_again_and_again_must_wait_before_its_address(clock: FakeClock) -> None:
    failures = FailedAttempts(60, clock=clock)
    for _ in range(30):
        failures.check_credential(b"revoked")
        failures.charge("192.0.2.1", b"revoked")
    with pytest.raises(TooManyRequests) as caught:
        failures.check_credential(b"revoked")
    assert caught.value.retry_after == pytest.approx(2)
    failures.check_credential(b"another")
    for _ in range(30):
        failures.charge("192.0.2.1")
    with pytest.raises(TooManyRequests):
        failures.charge("192.0.2.1")
    clock.advance(2)
    failures.check_credential(b"revoked")


def test_a_subscribers_ipv6_addresses_count_as_one(clock: FakeClock) -> None:
    """T2."""
    failures = FailedAttempts(1, clock=clock)
    failures.charge("2001:db8:1:2:3::4")
    assert failures.seconds_blocked("2001:db8:1:2:ffff::") > 0
    assert failures.seconds_blocked("2001:db8:1:3::") == 0
    failures.charge("::ffff:192.0.2.1")
    assert failures.seconds_blocked("192.0.2.1") > 0
    failures.charge("no:address")
    assert failures.seconds_blocked("no:address") > 0


def test_the_table_of_failures_is_bounded(clock: FakeClock) -> None:
    """T2."""
    failures = FailedAttempts(10, clock=clock, limit=50)
    for number in range(1000):
        failures.charge(f"192.0.{number // 256}.{number % 256}")
    assert len(failures) <= 50


def test_failures_need_not_be_limited(clock: FakeClock) -> None:
    failures = FailedAttempts(0, clock=clock)
    failures.charge("192.0.2.1")
    assert failures.seconds_blocked("192.0.2.1") == 0


# --- all together ---


async def test_a_request_enters_leaves_and_is_counted(clock: FakeClock) -> None:
    limits = Limits(LimitSettings(requests_per_second=1, burst=2, concurrency=1), clock=clock)
    jane = share(limits, "jane")
    first = entered(limits.try_enter(jane))
    assert limits.try_enter(jane) is None
    waiting = asyncio.ensure_future(limits.wait(jane))
    await turns()
    first()
    (await waiting)()
    with pytest.raises(TooManyRequests) as caught:
        limits.try_enter(jane)
    assert caught.value.retry_after == pytest.approx(1)
    with pytest.raises(TooManyRequests):
        limits.open_stream(jane)


@pytest.mark.parametrize("entry", ["pass_through", "take_seat"])
def test_what_is_let_in_at_once_counts_only_if_it_is_let_in(clock: FakeClock, entry: str) -> None:
    limits = Limits(LimitSettings(requests_per_second=1, burst=2, concurrency=1), clock=clock)
    jane = share(limits, "jane")
    leave = entered(limits.try_enter(jane))
    assert not getattr(limits, entry)(jane), "there is no seat"
    leave()
    assert getattr(limits, entry)(jane), "it has taken nothing of the rate"
    jane.seats = limits.seats.in_flight = 0
    assert not getattr(limits, entry)(jane), "the rate is used up"
    unlimited = Limits(LimitSettings(requests_per_second=0, concurrency=1), clock=clock)
    assert getattr(unlimited, entry)(share(unlimited, "jane"))
    assert unlimited.seats.in_flight == (1 if entry == "take_seat" else 0)
    assert getattr(limits, entry)(share(limits, "root", "system:masters"))


async def test_those_who_are_exempt_are_never_held_up(clock: FakeClock) -> None:
    """2.12."""
    settings = LimitSettings(
        requests_per_second=0.001, burst=1, concurrency=1, streams=1, exempt_users=frozenset({"probe"})
    )
    limits = Limits(settings, clock=clock)
    jane = share(limits, "jane", "dev")
    assert not jane.exempt
    for exempt in (share(limits, "probe"), share(limits, "root", "system:masters")):
        assert exempt.exempt
        for _ in range(10):
            entered(limits.try_enter(exempt))
            limits.open_stream(exempt)
    assert limits.seats.in_flight == 0
    entered(limits.try_enter(jane))


async def test_a_stream_takes_no_seat(clock: FakeClock) -> None:
    """2.11."""
    limits = Limits(LimitSettings(concurrency=1), clock=clock)
    jane = share(limits, "jane")
    stream = limits.open_stream(jane)
    entered(limits.try_enter(jane))()
    assert limits.streams.open_in_all == 1
    stream()
    assert limits.streams.open_in_all == 0


async def test_without_a_limit_nobody_waits(clock: FakeClock) -> None:
    limits = Limits(LimitSettings(concurrency=0, streams=0, streams_in_all=0), clock=clock)
    jane = share(limits, "jane")
    for _ in range(1000):
        entered(limits.try_enter(jane))
        limits.open_stream(jane)


@pytest.mark.parametrize(("settings", "seats"), [({}, 100), ({"concurrency": 8}, 2), ({"concurrency": 1}, 1)])
def test_a_user_may_have_a_quarter_of_the_seats_unless_it_is_said_otherwise(
    settings: dict[str, Any], seats: int
) -> None:
    assert LimitSettings(**settings).seats_per_user == seats
    assert LimitSettings(**settings, concurrency_per_user=7).seats_per_user == 7
    assert LimitSettings(concurrency=0).seats_per_user == 0
