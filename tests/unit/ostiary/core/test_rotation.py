"""The life of a rotating credential as a pure function of state and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.core import rotation
from ostiary.core.rotation import RefreshVerdict, State
from ostiary.errors import CredentialError
from ostiary.model import Credential, Secret

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ERROR = CredentialError("no credential")


def credential(lifetime: float | None = None) -> Credential:
    expires_at = None if lifetime is None else NOON + timedelta(seconds=lifetime)
    return Credential(Secret("t"), expires_at=expires_at)


def obtained(lifetime: float | None = None) -> State:
    return rotation.after_success(State(), credential(lifetime), now=NOON, monotonic=0, jitter=0.5)


def judged(state: State, *, after: float) -> RefreshVerdict:
    return rotation.judge(state, now=NOON + timedelta(seconds=after), monotonic=after)


def test_with_nothing_in_hand_the_plugin_runs() -> None:
    assert judged(State(), after=0) is RefreshVerdict.REFRESH


def test_a_credential_without_expiry_serves_for_ever() -> None:
    assert judged(obtained(), after=10**9) is RefreshVerdict.USE


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (0, RefreshVerdict.USE),
        (569.9, RefreshVerdict.USE),
        (570, RefreshVerdict.USE_AND_REFRESH),
        (600, RefreshVerdict.USE_AND_REFRESH),
        (600.001, RefreshVerdict.REFRESH),
    ],
)
def test_ten_minutes_are_refreshed_half_a_minute_ahead_and_expire_a_moment_after_the_end(
    after: float, verdict: RefreshVerdict
) -> None:
    assert judged(obtained(600), after=after) is verdict


def test_a_token_of_five_seconds_is_not_refreshed_all_the_time() -> None:
    """E3."""
    state = obtained(5)
    assert judged(state, after=4.4) is RefreshVerdict.USE
    assert judged(state, after=4.5) is RefreshVerdict.USE_AND_REFRESH


def test_after_a_failure_the_plugin_is_left_alone_for_a_while() -> None:
    state = rotation.after_failure(State(), ERROR, monotonic=0, jitter=0.5)
    assert judged(state, after=0.9) is RefreshVerdict.WAIT
    assert judged(state, after=1.0) is RefreshVerdict.REFRESH


def test_the_pause_doubles_and_has_a_limit() -> None:
    pauses = [rotation.pause(n, 0.5) for n in range(1, 9)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_failed_refresh_leaves_the_old_credential_serving_until_it_expires() -> None:
    state = rotation.after_failure(obtained(600), ERROR, monotonic=580, jitter=0.5)
    assert judged(state, after=580) is RefreshVerdict.USE
    assert judged(state, after=581) is RefreshVerdict.USE_AND_REFRESH
    assert judged(state, after=600.5) is RefreshVerdict.REFRESH


def test_a_success_forgets_the_failures_before_it() -> None:
    state = rotation.after_failure(State(), ERROR, monotonic=0, jitter=0.5)
    state = rotation.after_success(state, credential(), now=NOON, monotonic=1, jitter=0.5)
    assert (state.failures, state.error, state.run_not_before) == (0, None, 0)


def test_what_had_expired_when_it_came_serves_nobody_after_those_who_waited() -> None:
    old = credential(-10)
    state = rotation.after_expired_answer(State(), old, ERROR, monotonic=0, jitter=0.5)
    assert state.credential is old
    assert judged(state, after=0) is RefreshVerdict.WAIT
    assert judged(state, after=1) is RefreshVerdict.REFRESH


# --- 401 ---


def reject(state: State, rejected: Credential | None = None, *, after: float = 0) -> RefreshVerdict:
    assert state.credential is not None
    return rotation.judge_rejected(state, rejected or state.credential, monotonic=after)


def replaced(state: State, *, at: float) -> State:
    return rotation.after_success(rotation.after_rejection(state), credential(), now=NOON, monotonic=at, jitter=0.5)


def test_the_first_rejection_is_acted_on_at_once() -> None:
    assert reject(obtained()) is RefreshVerdict.REFRESH


def test_a_rejection_of_an_older_credential_uses_the_newer_one_even_if_the_token_is_the_same() -> None:
    old = obtained()
    new = replaced(old, at=0)
    assert reject(new, old.credential) is RefreshVerdict.USE


def test_a_server_that_rejects_everything_is_asked_less_and_less_often() -> None:
    state = replaced(obtained(), at=0)
    assert reject(state, after=0.9) is RefreshVerdict.WAIT
    assert reject(state, after=1.0) is RefreshVerdict.REFRESH
    state = replaced(state, at=1.0)
    assert reject(state, after=2.9) is RefreshVerdict.WAIT
    assert reject(state, after=3.0) is RefreshVerdict.REFRESH


def test_a_credential_that_was_taken_once_is_replaced_at_once_when_it_is_rejected_later() -> None:
    state = rotation.after_acceptance(replaced(obtained(), at=0))
    assert reject(state, after=0) is RefreshVerdict.REFRESH
    assert replaced(state, at=0).replace_not_before == 0


def test_a_rejection_does_not_run_a_plugin_that_has_just_failed() -> None:
    state = rotation.after_failure(obtained(), ERROR, monotonic=0, jitter=0.5)
    assert reject(state, after=0.5) is RefreshVerdict.WAIT
    assert reject(state, after=1.0) is RefreshVerdict.REFRESH


# --- whatever happens ---

EVENTS = st.lists(
    st.tuples(st.sampled_from(["ok", "fail", "spent", "reject", "accept"]), st.floats(0, 50), st.floats(0, 1)),
    max_size=30,
)


@given(EVENTS, st.floats(0.1, 1000))
def test_an_expired_credential_is_never_used_and_runs_keep_their_distance(
    events: list[tuple[str, float, float]], lifetime: float
) -> None:
    """E3, E22."""
    state, time = State(), 0.0
    for event, step, jitter in events:
        time += step
        now = NOON + timedelta(seconds=time)
        fresh = Credential(Secret("t"), expires_at=now + timedelta(seconds=lifetime))
        stale = Credential(Secret("t"), expires_at=now - timedelta(seconds=1))
        match event:
            case "ok":
                state = rotation.after_success(state, fresh, now=now, monotonic=time, jitter=jitter)
            case "fail":
                state = rotation.after_failure(state, ERROR, monotonic=time, jitter=jitter)
                assert rotation.judge(state, now=now, monotonic=time + 0.7) in (RefreshVerdict.WAIT, RefreshVerdict.USE)
            case "spent":
                state = rotation.after_expired_answer(state, stale, ERROR, monotonic=time, jitter=jitter)
                assert rotation.judge(state, now=now, monotonic=time + 0.7) is RefreshVerdict.WAIT
            case "reject" if state.credential is not None:
                state = rotation.after_rejection(state)
            case "accept":
                state = rotation.after_acceptance(state)
        verdict = rotation.judge(state, now=now, monotonic=time)
        if verdict in (RefreshVerdict.USE, RefreshVerdict.USE_AND_REFRESH):
            assert state.credential is not None
            assert not state.spent
            assert not rotation.is_expired(state.credential, now)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3650)))
def test_the_window_is_never_more_than_a_tenth_of_the_lifetime_nor_half_a_minute(lifetime: timedelta) -> None:
    window = rotation.ahead_window(lifetime)
    assert timedelta(0) <= window <= min(timedelta(seconds=30), lifetime * 0.1)
