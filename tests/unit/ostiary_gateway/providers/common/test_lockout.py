"""Guessing is slowed down, and nobody is locked out by somebody else."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import LoginRefused, ProviderError
from ostiary_gateway.limits.counts import MachineCounts, MemoryCounts
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts
from ostiary_gateway.providers.common.lockout import Lockout, LockoutSettings
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.testing import FakeClock
from tests.support.count_store import MemoryCountStore

SETTINGS = LockoutSettings(attempts=3, window=timedelta(minutes=10), duration=timedelta(minutes=5))


@pytest.fixture
def lockout(clock: FakeClock) -> Lockout:
    return Lockout(SETTINGS, clock=clock)


async def fail(lockout: Lockout, username: str = "alice", address: str = "192.0.2.1", *, times: int = 1) -> None:
    for _ in range(times):
        async with lockout.attempt(username, address) as attempt:
            attempt.settle(right=False)


async def succeed(lockout: Lockout, username: str = "alice", address: str = "192.0.2.1") -> None:
    async with lockout.attempt(username, address) as attempt:
        attempt.settle(right=True)


async def test_after_some_failures_even_the_right_password_waits(lockout: Lockout, clock: FakeClock) -> None:
    """L9."""
    await fail(lockout, times=3)
    with pytest.raises(LoginRefused) as refused:
        await succeed(lockout)
    assert refused.value.retry_after == 300
    clock.advance(minutes=5)
    await succeed(lockout)


async def test_a_success_forgets_the_failures(lockout: Lockout) -> None:
    for _ in range(3):
        await fail(lockout, times=2)
        await succeed(lockout)


async def test_old_failures_are_forgotten(lockout: Lockout, clock: FakeClock) -> None:
    await fail(lockout, times=2)
    clock.advance(minutes=10)
    await fail(lockout, times=2)
    await succeed(lockout)


@pytest.mark.parametrize("spelling", ["ALICE", " alice ", "ａｌｉｃｅ", "Alice\u00a0"])
async def test_other_spellings_of_a_name_share_its_limit(lockout: Lockout, spelling: str) -> None:
    """L9."""
    await fail(lockout, times=3)
    with pytest.raises(LoginRefused):
        await succeed(lockout, spelling)


async def test_nobody_is_locked_out_from_elsewhere(lockout: Lockout) -> None:
    """L9."""
    await fail(lockout, times=3)
    await succeed(lockout, address="192.0.2.2")


async def test_one_address_cannot_try_a_password_on_everybody(lockout: Lockout) -> None:
    """L9."""
    for number in range(30):
        await fail(lockout, f"user{number}")
    with pytest.raises(LoginRefused):
        await succeed(lockout, "somebody")
    await succeed(lockout, "somebody", "192.0.2.2")


async def test_a_success_of_ones_own_is_no_way_to_go_on_guessing(lockout: Lockout) -> None:
    for number in range(30):
        await fail(lockout, f"user{number}")
        if number < 29:
            await succeed(lockout, "mallory")
    with pytest.raises(LoginRefused):
        await succeed(lockout, "mallory")


async def test_all_addresses_of_an_ipv6_network_share_the_limit(lockout: Lockout) -> None:
    for number in range(3):
        await fail(lockout, address=f"2001:db8::{number}")
    with pytest.raises(LoginRefused):
        await succeed(lockout, address="2001:db8::ffff")
    await succeed(lockout, address="2001:db8:0:1::1")


async def test_many_attempts_at_once_count_before_they_are_settled(lockout: Lockout) -> None:
    async with (
        lockout.attempt("alice", "192.0.2.1"),
        lockout.attempt("alice", "192.0.2.1"),
        lockout.attempt("alice", "192.0.2.1"),
    ):
        with pytest.raises(LoginRefused) as refused:
            await succeed(lockout)
    assert refused.value.retry_after == 1
    await succeed(lockout)


async def test_an_attempt_that_was_given_up_counts_for_nothing(lockout: Lockout) -> None:
    for _ in range(10):
        async with lockout.attempt("alice", "192.0.2.1"):
            pass
    await succeed(lockout)


async def test_the_table_is_bounded(clock: FakeClock) -> None:
    counts = MemoryCounts(clock=clock, narrow_limit=20)
    lockout = Lockout(SETTINGS, counts=counts)
    for number in range(100):
        await fail(lockout, "a" * 5000 + str(number), f"192.0.2.{number}")
    assert len(counts) <= 20


async def test_all_workers_count_together(clock: FakeClock) -> None:
    """Two workers: as many passwords are checked as with one, and what one of them is checking counts for the other."""
    shared = MachineCounts.create()
    workers = [Lockout(SETTINGS, counts=MachineCounts(shared, clock=clock), name="staff") for _ in range(2)]
    await fail(workers[0])
    await fail(workers[1])
    async with workers[0].attempt("alice", "192.0.2.1"):
        with pytest.raises(LoginRefused):
            await succeed(workers[1])
    await fail(workers[1])
    for worker in workers:
        with pytest.raises(LoginRefused) as refused:
            await succeed(worker)
        assert refused.value.retry_after == 300
    clock.advance(minutes=5)
    await succeed(workers[0])
    os.close(shared)


def joined(store: MemoryCountStore, clock: FakeClock) -> Lockout:
    """The lockout of one replica."""
    counts = ReplicatedCounts(MemoryCounts(clock=clock), clock=clock)
    counts.join(store)
    return Lockout(SETTINGS, counts=counts, name="staff")


async def test_all_replicas_count_together_and_exactly(clock: FakeClock) -> None:
    store = MemoryCountStore(clock)
    replicas = [joined(store, clock) for _ in range(3)]
    for replica in replicas:
        await fail(replica)
    for replica in (*replicas, joined(store, clock)):
        with pytest.raises(LoginRefused):
            await succeed(replica)


async def test_no_password_is_checked_while_the_store_cannot_be_asked(clock: FakeClock) -> None:
    store = MemoryCountStore(clock)
    lockout = joined(store, clock)
    store.away = True
    with pytest.raises(ProviderError):
        async with lockout.attempt("alice", "192.0.2.1"):
            pytest.fail("it would have been checked")
    store.away = False
    await succeed(lockout)


async def test_a_password_that_cannot_be_counted_lets_nobody_in(clock: FakeClock) -> None:
    store = MemoryCountStore(clock)
    lockout = joined(store, clock)

    async def succeed_as_the_store_goes_away() -> None:
        async with lockout.attempt("alice", "192.0.2.1") as attempt:
            attempt.settle(right=True)
            store.away = True

    with pytest.raises(ProviderError):
        await succeed_as_the_store_goes_away()


async def test_a_worker_that_died_while_it_checked_a_password_is_not_waited_for(clock: FakeClock) -> None:
    counts = MemoryCounts(clock=clock)
    for _ in range(3):
        # It never comes to its end.
        await Lockout(SETTINGS, counts=counts).attempt("alice", "192.0.2.1").__aenter__()
    lockout = Lockout(SETTINGS, counts=counts)
    with pytest.raises(LoginRefused):
        await succeed(lockout)
    clock.advance(minutes=1, seconds=1)
    await succeed(lockout)


async def test_two_providers_do_not_count_each_others_failures(clock: FakeClock) -> None:
    counts = MemoryCounts(clock=clock)
    await fail(Lockout(SETTINGS, counts=counts, name="staff"), times=3)
    await succeed(Lockout(SETTINGS, counts=counts, name="partners"))


def test_settings_are_read_and_checked() -> None:
    reading = ConfigReader(parse("{attempts: 2, window: 1m, duration: 2m}"))
    assert read_settings(LockoutSettings, reading.root, Path()) == LockoutSettings(
        2, timedelta(minutes=1), timedelta(minutes=2)
    )
    assert reading.problems == []
    reading = ConfigReader(parse("{attempts: 0, window: 0s, duration: -1m}"))
    read_settings(LockoutSettings, reading.root, Path())
    assert len(reading.problems) == 3
