"""Guessing is slowed down, and nobody is locked out by somebody else."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ostiary.core.config import Reading, parse
from ostiary.errors import LoginRefused
from ostiary.plugins.identity import lockout as module
from ostiary.plugins.identity.lockout import Lockout, LockoutSettings, lockout_settings
from ostiary.testing import FakeClock

SETTINGS = LockoutSettings(attempts=3, window=timedelta(minutes=10), duration=timedelta(minutes=5))


@pytest.fixture
def lockout(clock: FakeClock) -> Lockout:
    return Lockout(SETTINGS, clock=clock)


def fail(lockout: Lockout, username: str = "alice", address: str = "192.0.2.1", *, times: int = 1) -> None:
    for _ in range(times):
        with lockout.attempt(username, address) as attempt:
            attempt.settle(right=False)


def succeed(lockout: Lockout, username: str = "alice", address: str = "192.0.2.1") -> None:
    with lockout.attempt(username, address) as attempt:
        attempt.settle(right=True)


def test_after_some_failures_even_the_right_password_waits(lockout: Lockout, clock: FakeClock) -> None:
    """L9."""
    fail(lockout, times=3)
    with pytest.raises(LoginRefused) as refused:
        succeed(lockout)
    assert refused.value.retry_after == 300
    clock.advance(minutes=5)
    succeed(lockout)


def test_a_success_forgets_the_failures(lockout: Lockout) -> None:
    for _ in range(3):
        fail(lockout, times=2)
        succeed(lockout)


def test_old_failures_are_forgotten(lockout: Lockout, clock: FakeClock) -> None:
    fail(lockout, times=2)
    clock.advance(minutes=10)
    fail(lockout, times=2)
    succeed(lockout)


@pytest.mark.parametrize("spelling", ["ALICE", " alice ", "ａｌｉｃｅ", "Alice\u00a0"])
def test_other_spellings_of_a_name_share_its_limit(lockout: Lockout, spelling: str) -> None:
    """L9."""
    fail(lockout, times=3)
    with pytest.raises(LoginRefused):
        succeed(lockout, spelling)


def test_nobody_is_locked_out_from_elsewhere(lockout: Lockout) -> None:
    """L9."""
    fail(lockout, times=3)
    succeed(lockout, address="192.0.2.2")


def test_one_address_cannot_try_a_password_on_everybody(lockout: Lockout) -> None:
    """L9."""
    for number in range(30):
        fail(lockout, f"user{number}")
    with pytest.raises(LoginRefused):
        succeed(lockout, "somebody")
    succeed(lockout, "somebody", "192.0.2.2")


def test_a_success_of_ones_own_is_no_way_to_go_on_guessing(lockout: Lockout) -> None:
    for number in range(30):
        fail(lockout, f"user{number}")
        if number < 29:
            succeed(lockout, "mallory")
    with pytest.raises(LoginRefused):
        succeed(lockout, "mallory")


def test_all_addresses_of_an_ipv6_network_share_the_limit(lockout: Lockout) -> None:
    for number in range(3):
        fail(lockout, address=f"2001:db8::{number}")
    with pytest.raises(LoginRefused):
        succeed(lockout, address="2001:db8::ffff")
    succeed(lockout, address="2001:db8:0:1::1")


def test_many_attempts_at_once_count_before_they_are_settled(lockout: Lockout) -> None:
    with (
        lockout.attempt("alice", "192.0.2.1"),
        lockout.attempt("alice", "192.0.2.1"),
        lockout.attempt("alice", "192.0.2.1"),
        pytest.raises(LoginRefused) as refused,
    ):
        succeed(lockout)
    assert refused.value.retry_after == 1
    succeed(lockout)


def test_an_attempt_that_was_given_up_counts_for_nothing(lockout: Lockout) -> None:
    for _ in range(10):
        with lockout.attempt("alice", "192.0.2.1"):
            pass
    succeed(lockout)


def test_the_table_is_bounded(lockout: Lockout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 20)
    for number in range(100):
        fail(lockout, "a" * 5000 + str(number), f"192.0.2.{number}")
    assert len(lockout) == 20


def test_settings_are_read_and_checked() -> None:
    reading = Reading(parse("{attempts: 2, window: 1m, duration: 2m}"))
    assert lockout_settings(reading.root) == LockoutSettings(2, timedelta(minutes=1), timedelta(minutes=2))
    assert reading.problems == []
    reading = Reading(parse("{attempts: 0, window: 0s, duration: -1m}"))
    lockout_settings(reading.root)
    assert len(reading.problems) == 3
