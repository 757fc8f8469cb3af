"""Refresh policy of rotating credentials: use, refresh or wait.

Pure: a `State` and the time go in, a decision or a new `State` comes out. The authenticator acts on it.

- A credential expires when its time has passed, not earlier.
- Shortly before that it is refreshed in the background while it is still used: see `ahead_window`.
- After a failure, or if the plugin returns an expired credential, the plugin is not run during an exponential backoff.
- A credential that the server rejects is replaced immediately the first time. While the server keeps rejecting what the
plugin returns, replacements back off as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from ostiary.errors import CredentialError
from ostiary.model import Credential

AHEAD_AT_MOST = timedelta(seconds=30)
AHEAD_PART_OF_LIFETIME = 0.1
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
_ALWAYS_PAST, _ALWAYS_AHEAD = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class RefreshVerdict(Enum):
    USE = auto()
    USE_AND_REFRESH = auto()
    REFRESH = auto()
    WAIT = auto()


@dataclass(frozen=True, slots=True)
class State:
    """State of one rotating credential. Immutable: replaced as a whole."""

    credential: Credential | None = None
    fresh_until: datetime = _ALWAYS_PAST
    """Until then the credential is used without a refresh. Stored, because every request checks it."""
    spent: bool = False
    """The credential had expired when it was received: only the callers that waited for it may use it."""
    accepted: bool = False
    failures: int = 0
    error: CredentialError | None = None
    run_not_before: float = 0.0
    fruitless: int = 0
    """Number of consecutive credentials that the server rejected."""
    replace_not_before: float = 0.0


def judge(state: State, *, now: datetime, monotonic: float) -> RefreshVerdict:
    credential = state.credential
    if credential is None or state.spent or is_expired(credential, now):
        return RefreshVerdict.WAIT if monotonic < state.run_not_before else RefreshVerdict.REFRESH
    if now < state.fresh_until or monotonic < state.run_not_before:
        return RefreshVerdict.USE
    return RefreshVerdict.USE_AND_REFRESH


def judge_rejected(state: State, rejected: Credential, *, monotonic: float) -> RefreshVerdict:
    """Decide what to do about a 401: USE a newer credential, REFRESH, or WAIT, which returns the 401 to the caller."""
    # Identity, not equality: a plugin may return the same token again, and that result is still newer than the one the
    # server rejected.
    if state.credential is not None and state.credential is not rejected and not state.spent:
        return RefreshVerdict.USE
    if monotonic < max(state.run_not_before, state.replace_not_before):
        return RefreshVerdict.WAIT
    return RefreshVerdict.REFRESH


def is_expired(credential: Credential, now: datetime) -> bool:
    return credential.expires_at is not None and now > credential.expires_at


def ahead_window(lifetime: timedelta) -> timedelta:
    """Return how long before expiry to refresh: short enough that a token of seconds is not refreshed all the time."""
    return max(timedelta(0), min(AHEAD_AT_MOST, lifetime * AHEAD_PART_OF_LIFETIME))


def after_success(state: State, credential: Credential, *, now: datetime, monotonic: float, jitter: float) -> State:
    """Return the state after the plugin returned a valid credential. *jitter* is between 0 and 1."""
    fruitless = state.fruitless
    not_before = monotonic + pause(fruitless, jitter) if fruitless else 0.0
    ends = credential.expires_at
    fresh_until = _ALWAYS_AHEAD if ends is None else ends - ahead_window(ends - now)
    return State(credential, fresh_until, fruitless=fruitless, replace_not_before=not_before)


def after_expired_answer(
    state: State,
    credential: Credential,
    error: CredentialError,
    *,
    monotonic: float,
    jitter: float,
) -> State:
    """Return the state after the plugin returned an expired credential."""
    failed_state = after_failure(state, error, monotonic=monotonic, jitter=jitter)
    return replace(failed_state, credential=credential, fresh_until=_ALWAYS_PAST, spent=True, accepted=False)


def after_failure(state: State, error: CredentialError, *, monotonic: float, jitter: float) -> State:
    """Return the state after the run failed. The previous credential stays in use until it expires."""
    failures = state.failures + 1
    return replace(state, failures=failures, error=error, run_not_before=monotonic + pause(failures, jitter))


def after_rejection(state: State) -> State:
    """Return the state after the server rejected the current credential, which is about to be replaced."""
    return replace(state, fruitless=0 if state.accepted else state.fruitless + 1)


def after_acceptance(state: State) -> State:
    return replace(state, accepted=True, fruitless=0, replace_not_before=0.0)


def pause(times: int, jitter: float) -> float:
    """Return the backoff in seconds after *times* failures in a row."""
    doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(times - 1, 16)
    return min(LONGEST_PAUSE_SECONDS, doubled) * (0.75 + 0.5 * jitter)
